//! Draws what is to be seen.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Flex, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table, TableState};

use super::state::{Pane, Popup, State};
use super::tables::{List, bars, count};
use crate::shown::{name, printable};
use crate::telemetry::Overview;

/// Lines of a list beside its own: title and header.
const FRAME: u16 = 2;

/// Stands before the marked line; the other lines have blanks there.
const MARK: &str = "> ";
const MARK_WIDTH: u16 = 2;

const HELP: [&str; 12] = [
    "up, down, k, j    mark a line",
    "home, end         the first, the last line",
    "tab, right, left  another list",
    "p                 pause the marked queue",
    "r                 resume the marked queue",
    "R                 retry the marked failed jobs",
    "?                 this help",
    "q, ctrl-c         quit",
    "",
    "due      jobs that no worker has moved yet",
    "per min  attempts in the last full minute",
    "failed   jobs of the last hour, for good",
];

/// Whether to use colours; words always say the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) is_coloured: bool,
}

impl Look {
    fn colour(self, colour: Color) -> Style {
        if self.is_coloured {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
}

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, look: Look) {
    let area = frame.area();
    let queues = state.overview.as_ref().map_or(1, |seen| seen.queues.len());
    let queues = u16::try_from(queues.max(1)).unwrap_or(u16::MAX);
    // At most half of it: the list below has to be seen, too.
    let queues = queues.saturating_add(FRAME).min(area.height / 2);
    let rows = [
        Constraint::Length(2),
        Constraint::Length(queues),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, above, below, foot] = Layout::vertical(rows).areas(area);
    match &state.overview {
        None => frame.render_widget(Paragraph::new("asking the workers .."), head),
        Some(overview) => {
            draw_head(frame, head, overview, look);
            draw_list(frame, above, Pane::Queues, state, overview);
            draw_list(frame, below, state.below, state, overview);
        }
    }
    draw_foot(frame, foot, state, look);
    if let Some(popup) = &state.popup {
        draw_popup(frame, popup);
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, overview: &Overview, look: Look) {
    let number = overview.workers.len() + overview.more_workers;
    let workers = if number == 1 { "worker" } else { "workers" };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let connection = name(&overview.connection);
    let what = format!(
        "{number} {workers}, {} of {} slots busy",
        overview.busy, overview.slots
    );
    let left = Line::from(vec![
        Span::styled("artisand top", bold),
        Span::raw(format!("  {connection}: {what}")),
    ]);
    let [first, second] = Layout::vertical([Constraint::Length(1); 2]).areas(area);
    frame.render_widget(Paragraph::new(left), first);
    let right = match leftovers(overview) {
        Some(text) => Span::styled(text, look.colour(Color::Red)),
        None => Span::raw(""),
    };
    frame.render_widget(Paragraph::new(right).alignment(Alignment::Right), first);
    let line = if let Some(problem) = overview.problems.first() {
        let problem = format!("! {}", printable(problem));
        Line::styled(problem, look.colour(Color::Red))
    } else {
        let ended = overview.total.ended();
        let last = ended.iter().copied().nth_back(1).unwrap_or(0);
        let bars = Span::styled(bars(&ended), look.colour(Color::Green));
        let text = format!("| {} per min", count(last));
        Line::from(vec![bars, Span::raw(text)])
    };
    frame.render_widget(Paragraph::new(line), second);
}

/// What ended jobs have left to do.
fn leftovers(overview: &Overview) -> Option<String> {
    let waits = |number: Option<u64>, what: &str| match number {
        None | Some(0) => None,
        Some(number) => Some(format!("{} {what}", count(number))),
    };
    let parts = [
        waits(overview.failed_spool, "failed jobs not recorded"),
        waits(overview.follow_ups, "follow-ups wait"),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn draw_list(frame: &mut Frame<'_>, area: Rect, pane: Pane, state: &State, overview: &Overview) {
    let list = List::of(pane, overview);
    let has_focus = state.focus == pane;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let title = if has_focus {
        Span::styled(format!("[{}]", list.title), bold)
    } else {
        Span::raw(list.title)
    };
    let block = Block::new().borders(Borders::TOP).title(title);
    if list.lines.is_empty() {
        let text = Paragraph::new(format!("  {}", list.empty));
        frame.render_widget(text.block(block), area);
        return;
    }
    let columns = list.columns.iter();
    let header = columns
        .clone()
        .map(|column| Line::raw(column.title).alignment(column.alignment));
    let widths = columns.clone().map(|column| column.width);
    // As the table lays its columns out.
    let inner = Rect {
        width: area.width.saturating_sub(MARK_WIDTH),
        ..area
    };
    let areas = Layout::horizontal(widths.clone())
        .flex(Flex::Start)
        .spacing(1)
        .split(inner);
    let row = |line: Vec<String>| {
        let cells = line.into_iter().zip(columns.clone()).zip(&*areas);
        let cells = cells.map(|((text, column), area)| {
            Line::raw(column.cut(text, area.width)).alignment(column.alignment)
        });
        Row::new(cells.collect::<Vec<_>>())
    };
    let table = Table::new(list.lines.into_iter().map(row), widths)
        .header(Row::new(header).style(bold))
        .flex(Flex::Start)
        .column_spacing(1)
        .block(block)
        .highlight_symbol(MARK)
        .highlight_spacing(ratatui::widgets::HighlightSpacing::Always)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let marked = state.marked(pane).filter(|_| has_focus);
    let mut place = TableState::new().with_selected(marked);
    frame.render_stateful_widget(table, area, &mut place);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, state: &State, look: Look) {
    let line = match &state.said {
        _ if state.is_busy && state.is_over => {
            Line::raw("waiting for the end of the last order ..")
        }
        Some(said) => Line::styled(printable(said).into_owned(), look.colour(Color::Yellow)),
        None if state.is_busy => Line::raw("being done .."),
        None => Line::raw("arrows mark  tab list  p pause  r resume  R retry  ? help  q quit"),
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn draw_popup(frame: &mut Frame<'_>, popup: &Popup) {
    let (title, lines) = match popup {
        Popup::Help => (" Help ", HELP.map(str::to_owned).to_vec()),
        Popup::Retry {
            class,
            exception,
            count,
        } => (
            " Retry ",
            vec![
                format!("Push {count} or more failed jobs again?"),
                String::new(),
                format!("class      {}", name(class)),
                format!("exception  {}", name(exception)),
                String::new(),
                "y  yes, at most the latest 1,000".to_owned(),
                "any other key  no".to_owned(),
            ],
        ),
    };
    let area = frame.area();
    let widest = lines.iter().map(|line| line.chars().count()).max();
    let width = u16::try_from(widest.unwrap_or(0) + 4).unwrap_or(u16::MAX);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let area = area.centered(
        Constraint::Length(width.min(area.width)),
        Constraint::Length(height.min(area.height)),
    );
    let lines: Vec<_> = lines
        .into_iter()
        .map(|line| Line::raw(format!(" {line}")))
        .collect();
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
