//! What was measured, as tables and charts of `docs/benchmarks.md`.

use std::fmt::Write as _;

use crate::bare::BARE;
use crate::worker::CONTENDERS;
use crate::{php, push, scaling, tables};

/// What one contender did in one round.
pub(crate) struct Round {
    pub(crate) name: String,
    pub(crate) jobs: usize,
    pub(crate) seconds: f64,
    pub(crate) commands_per_job: f64,
    /// Microseconds of processor time per job, of Redis and of artisand.
    pub(crate) micros: Option<(f64, f64)>,
    /// Milliseconds of the longest script call; 0 below one.
    pub(crate) longest_script: Option<f64>,
    /// Peak of resident memory, in MB.
    pub(crate) memory: Option<f64>,
}

impl Round {
    pub(crate) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name, "jobs": self.jobs, "seconds": self.seconds, "commands_per_job": self.commands_per_job,
            "redis_and_own_micros": self.micros, "longest_script_ms": self.longest_script, "memory_mb": self.memory,
        })
    }

    fn per_second(&self) -> f64 {
        crate::float(self.jobs) / self.seconds
    }
}

/// All rounds of a benchmark.
pub(crate) struct Rounds(pub(crate) Vec<Round>);

impl Rounds {
    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Round> {
        self.0.iter().filter(move |round| round.name == name)
    }

    fn median(&self, name: &str, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let mut values: Vec<f64> = self.of(name).filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    fn rate(&self, name: &str) -> Option<f64> {
        self.median(name, |round| Some(round.per_second()))
    }

    /// Workers in Rust, and the bare loop.
    pub(crate) fn table(&self) -> String {
        let mut table = "| | jobs/s | least and most | of the bare loop | Redis us/job | artisand us/job | calls/job | longest script, ms | memory, MB |\n\
                         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
        let workers = CONTENDERS.iter().map(|contender| contender.name);
        for name in workers.chain(BARE.map(|(name, _)| name)) {
            let Some(rate) = self.rate(name) else {
                continue;
            };
            let bare = BARE[usize::from(name.contains("256") || name.contains("1024"))].0;
            let bare = self.rate(bare).map(|bare| rate / bare);
            let (least, most) = self.extremes(name);
            let median = |of: &dyn Fn(&Round) -> Option<f64>| self.median(name, of);
            let cell = |value: Option<f64>, digits| {
                value.map_or_else(String::new, |value| format!("{value:.digits$}"))
            };
            let longest = match median(&|round| round.longest_script) {
                Some(0.0) => "below 1".to_owned(),
                longest => cell(longest, 1),
            };
            writeln!(
                table,
                "| {name} | {} | {} to {} | {} | {} | {} | {} | {longest} | {} |",
                thousands(rate),
                thousands(least),
                thousands(most),
                cell(bare, 2),
                cell(median(&|round| Some(round.micros?.0)), 1),
                cell(median(&|round| Some(round.micros?.1)), 1),
                cell(median(&|round| Some(round.commands_per_job)), 3),
                cell(median(&|round| round.memory), 1),
            )
            .unwrap();
        }
        table
    }

    /// Jobs that are pushed.
    pub(crate) fn table_of_pushes(&self) -> String {
        let mut table = "| | jobs/s | least and most | Redis us/job | calls/job |\n| --- | --- | --- | --- | --- |\n".to_owned();
        let own = push::CONTENDERS.iter().map(|(name, _)| (*name).to_owned());
        for name in own.chain(php::VERSIONS.map(push::name_in_php)) {
            let Some(rate) = self.rate(&name) else {
                continue;
            };
            let redis = self.median(&name, |round| Some(round.micros?.0));
            let calls = self.median(&name, |round| Some(round.commands_per_job));
            let (least, most) = self.extremes(&name);
            writeln!(
                table,
                "| {name} | {} | {} to {} | {:.1} | {:.3} |",
                thousands(rate),
                thousands(least),
                thousands(most),
                redis.unwrap_or_default(),
                calls.unwrap_or_default(),
            )
            .unwrap();
        }
        table
    }

    /// Several workers.
    pub(crate) fn table_of_scaling(&self) -> String {
        let mut table = "| | workers | jobs/s | least and most | of one worker | Redis us/job | artisand us/job | calls/job |\n\
                         | --- | --- | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
        for contender in &scaling::CONTENDERS {
            let one = self.rate(&scaling::name(contender, 1));
            for processes in scaling::PROCESSES {
                let name = scaling::name(contender, processes);
                let (Some(rate), Some(one)) = (self.rate(&name), one) else {
                    continue;
                };
                let (least, most) = self.extremes(&name);
                let median =
                    |of: &dyn Fn(&Round) -> Option<f64>| self.median(&name, of).unwrap_or_default();
                writeln!(
                    table,
                    "| {} | {processes} | {} | {} to {} | {:.2} | {:.1} | {:.1} | {:.3} |",
                    contender.name,
                    thousands(rate),
                    thousands(least),
                    thousands(most),
                    rate / one,
                    median(&|round| Some(round.micros?.0)),
                    median(&|round| Some(round.micros?.1)),
                    median(&|round| Some(round.commands_per_job)),
                )
                .unwrap();
            }
        }
        table
    }

    /// The least and the most jobs per second.
    fn extremes(&self, name: &str) -> (f64, f64) {
        let rates = self.of(name).map(Round::per_second);
        rates.fold((f64::MAX, 0.0_f64), |(least, most), rate| {
            (least.min(rate), most.max(rate))
        })
    }

    /// Pools of PHP processes beside `queue:work`.
    pub(crate) fn table_of_php(&self) -> String {
        let mut table = "| | pool, jobs/s | `queue:work`, jobs/s | ratio | commands/job, pool | commands/job, `queue:work` |\n\
                         | --- | --- | --- | --- | --- | --- |\n"
            .to_owned();
        for (version, processes) in pairs() {
            let [pool, work] = php::names(version, processes);
            let (Some(rate), Some(reference)) = (self.rate(&pool), self.rate(&work)) else {
                continue;
            };
            let commands = |name| self.median(name, |round| Some(round.commands_per_job));
            writeln!(
                table,
                "| Laravel {version}, {processes} process{} | {} | {} | {:.2} | {:.1} | {:.1} |",
                if processes == 1 { "" } else { "es" },
                thousands(rate),
                thousands(reference),
                rate / reference,
                commands(&pool).unwrap_or_default(),
                commands(&work).unwrap_or_default(),
            )
            .unwrap();
        }
        table
    }

    /// Queues in databases.
    pub(crate) fn table_of_tables(&self) -> String {
        let mut table =
            "| | jobs/s | least and most | of `queue:work` |\n| --- | --- | --- | --- |\n"
                .to_owned();
        for place in tables::PLACES {
            let reference = self.rate(&tables::name(place, tables::By::Php));
            for by in tables::CONTENDERS {
                let name = tables::name(place, by);
                let (Some(rate), Some(reference)) = (self.rate(&name), reference) else {
                    continue;
                };
                let (least, most) = self.extremes(&name);
                writeln!(
                    table,
                    "| {name} | {} | {} to {} | {:.1} |",
                    thousands(rate),
                    thousands(least),
                    thousands(most),
                    rate / reference,
                )
                .unwrap();
            }
        }
        table
    }

    /// Jobs per second of workers in Rust, as bars.
    pub(crate) fn chart(&self) -> String {
        let names = CONTENDERS.iter().map(|contender| contender.name);
        let names = names.chain(BARE.map(|(name, _)| name));
        chart(
            "Jobs per second",
            names.filter_map(|name| Some((name.to_owned(), self.rate(name)?))),
        )
    }

    /// The same of PHP.
    pub(crate) fn chart_of_php(&self) -> String {
        let names = pairs().flat_map(|(version, processes)| php::names(version, processes));
        chart(
            "Jobs per second",
            names.filter_map(|name| Some((name.clone(), self.rate(&name)?))),
        )
    }

    /// artisand's rate as a part of the bare loop's, for both sizes of a batch that were measured.
    pub(crate) fn ratios(&self) -> Vec<(&'static str, f64)> {
        let pairs = [
            ("no-op, 64 slots", BARE[0].0),
            ("no-op, 256 slots", BARE[1].0),
        ];
        let ratio = |(name, bare)| Some((name, self.rate(name)? / self.rate(bare)?));
        pairs.into_iter().filter_map(ratio).collect()
    }
}

fn pairs() -> impl Iterator<Item = (&'static str, usize)> {
    let of = |version| php::PROCESSES.map(|processes| (version, processes));
    php::VERSIONS.into_iter().flat_map(of)
}

/// Three significant digits, with commas: `126,000`.
fn thousands(rate: f64) -> String {
    let mut unit = 1.0;
    while rate / unit >= 1000.0 {
        unit *= 10.0;
    }
    let mut text = format!("{:.0}", (rate / unit).round() * unit);
    for place in (1..text.len()).rev().skip(2).step_by(3) {
        text.insert(place, ',');
    }
    text
}

/// A bar for each value, as SVG that is readable on light and dark pages.
fn chart(title: &str, values: impl Iterator<Item = (String, f64)>) -> String {
    const BAR: usize = 22;
    let values: Vec<(String, f64)> = values.collect();
    let most = values
        .iter()
        .fold(1.0_f64, |most, (_, value)| most.max(*value));
    let height = BAR * (values.len() + 2);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#888\">\n\
         <title>{title}</title>\n"
    );
    for (row, (name, value)) in values.iter().enumerate() {
        let (y, width) = (BAR * (row + 1), 380.0 * value / most);
        writeln!(
            svg,
            "<text x=\"290\" y=\"{}\" text-anchor=\"end\">{name}</text>\
             <rect x=\"300\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"#c0562f\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}</text>",
            y + BAR - 8,
            BAR - 6,
            306.0 + width,
            y + BAR - 8,
            thousands(*value),
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

/// Replaces what stands between `<!-- NAME -->` and `<!-- end -->` of a page.
pub(crate) fn replace(page: &str, name: &str, text: &str) -> String {
    let begin = format!("<!-- {name} -->\n");
    let at = page.find(&begin).expect(name) + begin.len();
    let end = at + page[at..].find("<!-- end -->").expect(name);
    format!("{}{text}{}", &page[..at], &page[end..])
}
