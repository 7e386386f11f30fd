//! Colours, and the boxes of artisan's output.

use crate::shown::printable;

pub(super) const GREY: &str = "90";
pub(super) const BLUE: &str = "34";
pub(super) const YELLOW_BOLD: &str = "33;1";
pub(super) const GREEN_BOLD: &str = "32;1";
pub(super) const RED_BOLD: &str = "31;1";
const BOLD: &str = "1";
pub(super) const BLACK_ON_YELLOW: &str = "30;43";

/// Which box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Info,
    Warn,
    Error,
}

impl Tag {
    fn painted(self, coloured: bool) -> String {
        let (colour, text) = match self {
            Self::Info => ("37;44", " INFO "),
            Self::Warn => (BLACK_ON_YELLOW, " WARN "),
            Self::Error => ("37;41", " ERROR "),
        };
        paint(coloured, colour, text)
    }
}

/// Text in a colour, or plain text.
pub(super) fn paint(coloured: bool, colour: &str, text: &str) -> String {
    if coloured {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Prints text in brackets bold.
pub(super) fn highlighted(coloured: bool, text: &str) -> String {
    if !coloured {
        return text.to_owned();
    }
    let (mut shown, mut rest) = (String::new(), text);
    while let Some((before, inside)) = rest.split_once('[') {
        shown.push_str(before);
        match inside.split_once(']') {
            Some((name, after)) if !name.is_empty() => {
                shown += &paint(coloured, BOLD, &format!("[{name}]"));
                rest = after;
            }
            _ => {
                shown.push('[');
                rest = inside;
            }
        }
    }
    shown + rest
}

pub(super) fn is_punctuated(text: &str) -> bool {
    text.ends_with(['.', '?', '!', ':'])
}

/// A box and the blank line below it. The caller prints the blank line above.
pub(super) fn boxed(tag: Tag, text: &str, coloured: bool) -> String {
    let text = printable(text);
    let end = if is_punctuated(&text) { "" } else { "." };
    format!(
        "  {} {}{end}  \n\n",
        tag.painted(coloured),
        highlighted(coloured, &text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_end_with_a_point_and_show_names_in_bold() {
        #[rustfmt::skip]
        let rows = [
            ("Done [x]", false, "   INFO  Done [x].  \n\n"),
            ("Really?", false, "   INFO  Really?  \n\n"),
            ("A\u{1b}[0m [] [b", false, "   INFO  A\\u{1b}[0m [] [b.  \n\n"),
            ("Done [x]", true, "  \u{1b}[37;44m INFO \u{1b}[0m Done \u{1b}[1m[x]\u{1b}[0m.  \n\n"),
            ("[] [b", true, "  \u{1b}[37;44m INFO \u{1b}[0m [] [b.  \n\n"),
        ];
        for (text, coloured, expected) in rows {
            assert_eq!(boxed(Tag::Info, text, coloured), expected);
        }
    }
}
