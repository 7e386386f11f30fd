use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::screen::{Look, draw};
use super::state::{Key, Pane, Popup, State};
use crate::telemetry::{Failures, Order, Overview};

/// A screen of a terminal of this size.
fn drawn(state: &State, width: u16, height: u16, is_coloured: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let look = Look { is_coloured };
    terminal.draw(|frame| draw(frame, state, look)).unwrap();
    terminal
}

/// Its text, without blanks at the ends of lines.
fn text(state: &State) -> String {
    let terminal = drawn(state, 80, 24, true);
    let cells = terminal.backend().buffer().content().chunks(80);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    };
    cells.map(line).collect()
}

fn looking() -> State {
    let mut state = State::new();
    state.show(Overview::example());
    state
}

/// The state after these keys, and the last order.
fn pressed(keys: &[Key]) -> (State, Option<Order>) {
    let mut state = looking();
    let mut order = None;
    for key in keys {
        order = state.on_key(*key);
    }
    (state, order)
}

#[test]
fn the_page_shows_the_screen_as_it_is() {
    let screen = text(&pressed(&[Key::Down]).0);
    let page = include_str!("../../../docs/operations/terminal.md");
    assert!(
        page.contains(&format!("```text\n{screen}```\n")),
        "{screen}"
    );
}

#[test]
fn each_list_has_its_columns() {
    let mut state = looking();
    let mut screens = String::new();
    for pane in Pane::ALL {
        assert_eq!(state.focus, pane);
        let screen = text(&state);
        // Below the queues.
        let below: Vec<_> = screen.lines().skip(7).take(6).collect();
        screens += &(below.join("\n") + "\n");
        state.on_key(Key::Next);
    }
    assert_eq!(state.focus, Pane::Queues);
    insta::assert_snapshot!(screens);
}

#[test]
fn popups_lie_over_the_lists() {
    let help = text(&pressed(&[Key::Char('?')]).0);
    let keys = [Key::Next, Key::Next, Key::Down, Key::Char('R')];
    insta::assert_snapshot!(help + &text(&pressed(&keys).0));
}

#[test]
fn without_workers_and_answers_that_is_said() {
    let mut seen = Overview::example();
    (seen.workers, seen.queues, seen.classes) = (Vec::new(), Vec::new(), Vec::new());
    seen.problems = vec!["queues: no \u{1b}[2Janswer".to_owned()];
    let mut state = State::new();
    let before = text(&state);
    assert!(before.starts_with("asking the workers"), "{before}");
    state.show(seen);
    let screen = text(&state);
    for part in [
        "0 workers",
        "no artisand worker of this Redis is alive",
        "! queues: no \\u{1b}[2Janswer",
    ] {
        assert!(screen.contains(part), "{screen}");
    }
}

#[test]
fn names_paint_nothing_and_colours_are_not_needed() {
    let mut seen = Overview::example();
    seen.classes[0].class = "App\u{1b}[31m\u{202e}\nX".to_owned();
    seen.queues[0].queue = "a\u{7}b".to_owned();
    let mut state = State::new();
    state.show(seen);
    let screen = text(&state);
    assert!(
        screen.contains("App\\u{1b}[31m\\u{202e}\\u{a}X"),
        "{screen}"
    );
    assert!(screen.contains("a\\u{7}b"), "{screen}");
    let terminal = drawn(&state, 80, 24, false);
    let mut cells = terminal.backend().buffer().content().iter();
    assert!(cells.all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
}

#[test]
fn what_is_lost_of_a_long_name_is_seen() {
    let mut seen = Overview::example();
    seen.classes[0].class = format!(r"App\Jobs\{}\SendReceipt", "Billing".repeat(9));
    seen.queues[0].queue = "reports-of-".repeat(9);
    // Two cells each.
    seen.queues[1].queue = "仕事".repeat(30);
    let mut state = State::new();
    state.show(seen);
    let screen = text(&state);
    let starts = |start: &str| {
        let of_line = |line: &str| line.trim_start_matches(['>', ' ']).starts_with(start);
        screen.lines().any(of_line)
    };
    assert!(
        starts("…") && screen.contains(r"Billing\SendReceipt"),
        "{screen}"
    );
    assert!(starts("reports-of-r") && screen.contains("…"), "{screen}");
    assert!(
        starts("仕") && !screen.contains(&"仕事".repeat(10)),
        "{screen}"
    );
}

#[test]
fn every_size_can_be_drawn() {
    let keys = [Key::Next, Key::Next, Key::Down, Key::Char('R')];
    for state in [State::new(), looking(), pressed(&keys).0] {
        for (width, height) in [(1, 1), (10, 3), (80, 2), (3, 80), (300, 100)] {
            drawn(&state, width, height, true);
        }
    }
}

#[test]
fn keys_order_what_is_marked_and_nothing_else() {
    use Key::{Char, Down, Escape, Interrupt, Last, Next, Previous, Up};
    let pause = |queue: &str, pauses| {
        Some(Order::Pause {
            connection: "redis".into(),
            queue: queue.into(),
            pauses,
        })
    };
    let retry = |class: &str, exception: &str| {
        Some(Order::Retry(Failures::Like {
            class: class.into(),
            exception: exception.into(),
        }))
    };
    let invoices = retry("App\\Jobs\\MakeInvoice", "RuntimeException");
    #[rustfmt::skip]
    let rows: [(&[Key], Option<Order>); 15] = [
        (&[Down, Char('p')], pause("default", true)),
        (&[Down, Down, Char('r')], pause("high", false)),
        (&[Last, Char('p')], pause("reports", true)),
        (&[Last, Down, Up, Char('p')], pause("high", true)),
        (&[Char('p')], None),
        (&[Next, Down, Char('p')], None),
        (&[Down, Char('R')], None),
        (&[Next, Next, Char('R'), Char('y')], None),
        (&[Next, Next, Down, Char('R')], None),
        (&[Next, Next, Down, Char('R'), Char('y')], invoices),
        (&[Next, Next, Down, Char('R'), Escape, Char('y')], None),
        (&[Next, Next, Down, Char('R'), Char('p')], None),
        (&[Previous, Previous, Previous, Down, Char('R'), Interrupt], None),
        (&[Down, Char('?'), Char('p')], None),
        (&[Char('y'), Char('x'), Char('P')], None),
    ];
    for (keys, expected) in rows {
        assert_eq!(pressed(keys).1, expected, "{keys:?}");
    }
    for keys in [&[Char('q')][..], &[Interrupt], &[Char('?'), Interrupt]] {
        assert!(pressed(keys).0.is_over, "{keys:?}");
    }
    assert!(!pressed(&[Char('?'), Char('q')]).0.is_over);
}

#[test]
fn one_order_comes_after_the_other() {
    let mut state = pressed(&[Key::Down]).0;
    state.is_busy = true;
    assert_eq!(state.on_key(Key::Char('p')), None);
    assert!(
        state
            .said
            .as_ref()
            .unwrap()
            .contains("still being carried out")
    );
    state.on_key(Key::Next);
    state.on_key(Key::Next);
    state.on_key(Key::Down);
    state.on_key(Key::Char('R'));
    assert_eq!(state.popup, None);
    let screen = text(&state);
    assert!(screen.contains("still being carried out"), "{screen}");
}

#[test]
fn a_mark_stays_with_its_line_and_goes_with_it() {
    let mut state = pressed(&[Key::Down]).0;
    let mut turned = Overview::example();
    turned.queues.reverse();
    state.show(turned);
    assert_eq!(state.marked(Pane::Queues), Some(2));
    let Some(Order::Pause { queue, .. }) = state.on_key(Key::Char('p')) else {
        panic!("{state:?}");
    };
    assert_eq!(queue, "default");
    // Another queue is not paused in place of one that has gone.
    let mut gone = Overview::example();
    gone.queues.remove(0);
    state.show(gone);
    assert_eq!(state.on_key(Key::Char('p')), None);
    // Nor are others retried than those that were asked about.
    let mut state = pressed(&[Key::Next, Key::Next, Key::Down, Key::Char('R')]).0;
    let mut turned = Overview::example();
    turned.failed.as_mut().unwrap().groups.reverse();
    state.show(turned);
    let expected = Popup::Retry {
        class: "App\\Jobs\\MakeInvoice".into(),
        exception: "RuntimeException".into(),
        count: 187,
    };
    assert_eq!(state.popup, Some(expected));
}
