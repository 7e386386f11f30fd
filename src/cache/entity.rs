//! PHP's `htmlentities`, limited to its effect on keys of rate limiters.

/// Entities of U+00A0 to U+00FF, in order.
#[rustfmt::skip]
const LATIN: [&str; 96] = [
    "nbsp", "iexcl", "cent", "pound", "curren", "yen", "brvbar", "sect", "uml", "copy", "ordf", "laquo", "not", "shy",
    "reg", "macr", "deg", "plusmn", "sup2", "sup3", "acute", "micro", "para", "middot", "cedil", "sup1", "ordm",
    "raquo", "frac14", "frac12", "frac34", "iquest", "Agrave", "Aacute", "Acirc", "Atilde", "Auml", "Aring", "AElig",
    "Ccedil", "Egrave", "Eacute", "Ecirc", "Euml", "Igrave", "Iacute", "Icirc", "Iuml", "ETH", "Ntilde", "Ograve",
    "Oacute", "Ocirc", "Otilde", "Ouml", "times", "Oslash", "Ugrave", "Uacute", "Ucirc", "Uuml", "Yacute", "THORN",
    "szlig", "agrave", "aacute", "acirc", "atilde", "auml", "aring", "aelig", "ccedil", "egrave", "eacute", "ecirc",
    "euml", "igrave", "iacute", "icirc", "iuml", "eth", "ntilde", "ograve", "oacute", "ocirc", "otilde", "ouml",
    "divide", "oslash", "ugrave", "uacute", "ucirc", "uuml", "yacute", "thorn", "yuml",
];

/// The other entities of HTML 4.01 beyond ASCII, in order.
#[rustfmt::skip]
const OTHERS: [(char, &str); 152] = [
    ('\u{152}', "OElig"), ('\u{153}', "oelig"), ('\u{160}', "Scaron"), ('\u{161}', "scaron"), ('\u{178}', "Yuml"),
    ('\u{192}', "fnof"), ('\u{2c6}', "circ"), ('\u{2dc}', "tilde"), ('\u{391}', "Alpha"), ('\u{392}', "Beta"),
    ('\u{393}', "Gamma"), ('\u{394}', "Delta"), ('\u{395}', "Epsilon"), ('\u{396}', "Zeta"), ('\u{397}', "Eta"),
    ('\u{398}', "Theta"), ('\u{399}', "Iota"), ('\u{39a}', "Kappa"), ('\u{39b}', "Lambda"), ('\u{39c}', "Mu"),
    ('\u{39d}', "Nu"), ('\u{39e}', "Xi"), ('\u{39f}', "Omicron"), ('\u{3a0}', "Pi"), ('\u{3a1}', "Rho"),
    ('\u{3a3}', "Sigma"), ('\u{3a4}', "Tau"), ('\u{3a5}', "Upsilon"), ('\u{3a6}', "Phi"), ('\u{3a7}', "Chi"),
    ('\u{3a8}', "Psi"), ('\u{3a9}', "Omega"), ('\u{3b1}', "alpha"), ('\u{3b2}', "beta"), ('\u{3b3}', "gamma"),
    ('\u{3b4}', "delta"), ('\u{3b5}', "epsilon"), ('\u{3b6}', "zeta"), ('\u{3b7}', "eta"), ('\u{3b8}', "theta"),
    ('\u{3b9}', "iota"), ('\u{3ba}', "kappa"), ('\u{3bb}', "lambda"), ('\u{3bc}', "mu"), ('\u{3bd}', "nu"),
    ('\u{3be}', "xi"), ('\u{3bf}', "omicron"), ('\u{3c0}', "pi"), ('\u{3c1}', "rho"), ('\u{3c2}', "sigmaf"),
    ('\u{3c3}', "sigma"), ('\u{3c4}', "tau"), ('\u{3c5}', "upsilon"), ('\u{3c6}', "phi"), ('\u{3c7}', "chi"),
    ('\u{3c8}', "psi"), ('\u{3c9}', "omega"), ('\u{3d1}', "thetasym"), ('\u{3d2}', "upsih"), ('\u{3d6}', "piv"),
    ('\u{2002}', "ensp"), ('\u{2003}', "emsp"), ('\u{2009}', "thinsp"), ('\u{200c}', "zwnj"), ('\u{200d}', "zwj"),
    ('\u{200e}', "lrm"), ('\u{200f}', "rlm"), ('\u{2013}', "ndash"), ('\u{2014}', "mdash"), ('\u{2018}', "lsquo"),
    ('\u{2019}', "rsquo"), ('\u{201a}', "sbquo"), ('\u{201c}', "ldquo"), ('\u{201d}', "rdquo"), ('\u{201e}', "bdquo"),
    ('\u{2020}', "dagger"), ('\u{2021}', "Dagger"), ('\u{2022}', "bull"), ('\u{2026}', "hellip"),
    ('\u{2030}', "permil"), ('\u{2032}', "prime"), ('\u{2033}', "Prime"), ('\u{2039}', "lsaquo"),
    ('\u{203a}', "rsaquo"), ('\u{203e}', "oline"), ('\u{2044}', "frasl"), ('\u{20ac}', "euro"), ('\u{2111}', "image"),
    ('\u{2118}', "weierp"), ('\u{211c}', "real"), ('\u{2122}', "trade"), ('\u{2135}', "alefsym"), ('\u{2190}', "larr"),
    ('\u{2191}', "uarr"), ('\u{2192}', "rarr"), ('\u{2193}', "darr"), ('\u{2194}', "harr"), ('\u{21b5}', "crarr"),
    ('\u{21d0}', "lArr"), ('\u{21d1}', "uArr"), ('\u{21d2}', "rArr"), ('\u{21d3}', "dArr"), ('\u{21d4}', "hArr"),
    ('\u{2200}', "forall"), ('\u{2202}', "part"), ('\u{2203}', "exist"), ('\u{2205}', "empty"), ('\u{2207}', "nabla"),
    ('\u{2208}', "isin"), ('\u{2209}', "notin"), ('\u{220b}', "ni"), ('\u{220f}', "prod"), ('\u{2211}', "sum"),
    ('\u{2212}', "minus"), ('\u{2217}', "lowast"), ('\u{221a}', "radic"), ('\u{221d}', "prop"), ('\u{221e}', "infin"),
    ('\u{2220}', "ang"), ('\u{2227}', "and"), ('\u{2228}', "or"), ('\u{2229}', "cap"), ('\u{222a}', "cup"),
    ('\u{222b}', "int"), ('\u{2234}', "there4"), ('\u{223c}', "sim"), ('\u{2245}', "cong"), ('\u{2248}', "asymp"),
    ('\u{2260}', "ne"), ('\u{2261}', "equiv"), ('\u{2264}', "le"), ('\u{2265}', "ge"), ('\u{2282}', "sub"),
    ('\u{2283}', "sup"), ('\u{2284}', "nsub"), ('\u{2286}', "sube"), ('\u{2287}', "supe"), ('\u{2295}', "oplus"),
    ('\u{2297}', "otimes"), ('\u{22a5}', "perp"), ('\u{22c5}', "sdot"), ('\u{2308}', "lceil"), ('\u{2309}', "rceil"),
    ('\u{230a}', "lfloor"), ('\u{230b}', "rfloor"), ('\u{2329}', "lang"), ('\u{232a}', "rang"), ('\u{25ca}', "loz"),
    ('\u{2660}', "spades"), ('\u{2663}', "clubs"), ('\u{2665}', "hearts"), ('\u{2666}', "diams"),
];

/// Name of the entity that `htmlentities` makes of a character (PHP 8.1 and later: quotes of both kinds).
fn entity(c: char) -> Option<&'static str> {
    match c {
        '"' => Some("quot"),
        '&' => Some("amp"),
        '\'' => Some("#039"),
        '<' => Some("lt"),
        '>' => Some("gt"),
        '\0'..='\u{9f}' => None,
        '\u{a0}'..='\u{ff}' => LATIN.get(u32::from(c) as usize - 0xa0).copied(),
        _ => {
            let at = OTHERS.binary_search_by_key(&c, |(c, _)| *c).ok()?;
            Some(OTHERS[at].1)
        }
    }
}

/// The key that the rate limiter stores: the entity of a letter is replaced by its first letter, other entities
/// stay.
///
/// # Source
///
/// `Illuminate\Cache\RateLimiter::cleanRateLimiterKey`.
pub(super) fn clean(key: &str) -> String {
    let mut cleaned = String::with_capacity(key.len());
    for c in key.chars() {
        match entity(c) {
            None => cleaned.push(c),
            Some(name) if name.bytes().all(|b| b.is_ascii_alphabetic()) => {
                cleaned.push_str(&name[..1]);
            }
            Some(name) => {
                cleaned.push('&');
                cleaned.push_str(name);
                cleaned.push(';');
            }
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lose_what_html_knows_by_name() {
        assert!(OTHERS.is_sorted_by_key(|(c, _)| *c));
        #[rustfmt::skip]
        let rows = [
            ("a&b", "aab"), ("\u{e9}", "e"), ("\"", "q"), ("<", "l"), ("'", "&#039;"),
            ("\u{bd}\u{b2}\u{2234}", "&frac12;&sup2;&there4;"),
            ("\u{c9}\u{20ac}\u{ff}\u{a0}\u{2666}", "Eeynd"),
            ("\u{17c}\u{80}\u{1f600}", "\u{17c}\u{80}\u{1f600}"),
            ("laravel_throttles_exceptions:1|x", "laravel_throttles_exceptions:1|x"),
        ];
        for (key, expected) in rows {
            assert_eq!(clean(key), expected, "{key:?}");
        }
    }
}
