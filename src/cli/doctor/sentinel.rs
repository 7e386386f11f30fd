//! The sentinels of a service, and what a failover costs.

use crate::cli::info::Info;
use crate::cli::report::Report;
use crate::connection::{Redis, Sentinels};

/// Asks each sentinel for the master, and the master for its replicas.
pub(super) async fn check(redis: &Redis, sentinels: &Sentinels) -> Report {
    let said = redis.ask_sentinels().await.unwrap_or_default();
    let mut report = answers(&sentinels.service, &said);
    report.extend(check_replicas(redis).await);
    report
}

/// Asks a master for its replicas.
pub(super) async fn check_replicas(master: &Redis) -> Report {
    let Ok(info) = Info::of(master, &["replication"]).await else {
        return Report::default();
    };
    let mut command = ::redis::cmd("CONFIG");
    let least = command.arg("GET").arg("min-replicas-to-write");
    let least = master.command::<Vec<String>>(least).await.ok();
    let least = least.and_then(|pair| pair.into_iter().nth(1));
    replicas(master.address(), &info, least.as_deref())
}

/// What each of the sentinels says of the master: where it is, or why it is not known.
fn answers(service: &str, said: &[(String, Result<String, String>)]) -> Report {
    let mut report = Report::default();
    let named = |(name, said): &(String, Result<String, String>)| {
        let master = said.as_ref().ok()?;
        Some((name.clone(), master.clone()))
    };
    let named: Vec<(String, String)> = said.iter().filter_map(named).collect();
    let mut masters: Vec<&str> = named.iter().map(|(_, master)| &**master).collect();
    masters.sort_unstable();
    masters.dedup();
    if !masters.is_empty() {
        report.ok(
            "sentinel",
            format!(
                "service `{service}`, master {}; {} of {} sentinels know it",
                masters.join(" or "),
                named.len(),
                said.len()
            ),
        );
    }
    for (name, problem) in said {
        if let Err(problem) = problem {
            report.warn(
                "sentinel",
                format!("{name} names no master of `{service}`: {problem}"),
                "start it, let it monitor the service, or take it out of the settings",
            );
        }
    }
    if masters.len() > 1 {
        let named = named.iter();
        let named = named.map(|(name, master)| format!("{name} names {master}"));
        report.warn(
            "sentinel",
            format!(
                "the sentinels disagree: {}",
                named.collect::<Vec<_>>().join(", ")
            ),
            "wait if a failover is under way; else one of them is cut off from the others",
        );
    }
    report
}

/// What is lost if the master fails; `least` is its setting, which managed servers do not reveal.
fn replicas(master: &str, info: &Info, least: Option<&str>) -> Report {
    let mut report = Report::default();
    if info.field("connected_slaves") == Some("0") {
        report.warn(
            "failover",
            format!("the master {master} has no replica that could take its place"),
            "start a replica (`replicaof`)",
        );
    }
    if least == Some("0") {
        report.ok(
            "failover",
            format!("min-replicas-to-write is 0 on {master}: after a failover, jobs that only the old master had are lost, and jobs whose end it had not replicated run again"),
        );
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_that_know_nothing_or_disagree_are_warnings() {
        let at = |name: &str, master: Result<&str, &str>| {
            let master = master.map(str::to_owned).map_err(str::to_owned);
            (name.to_owned(), master)
        };
        #[rustfmt::skip]
        let rows = [
            (vec![at("a", Ok("m:1")), at("b", Ok("m:1"))], "ok"),
            (vec![at("a", Ok("m:1")), at("b", Err("refused"))], "ok warning"),
            (vec![at("a", Ok("m:1")), at("b", Ok("n:1"))], "ok warning"),
            (vec![at("a", Err("refused"))], "warning"),
        ];
        for (said, expected) in rows {
            assert_eq!(answers("s", &said).levels(), expected, "{said:?}");
        }
        let levels = |info: &str, least| replicas("m", &Info(info.to_owned()), least).levels();
        assert_eq!(levels("connected_slaves:1", Some("0")), "ok");
        assert_eq!(levels("connected_slaves:0", Some("1")), "warning");
    }
}
