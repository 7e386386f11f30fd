//! Payloads as Laravel writes them.

/// What PHP runs: its class of Laravel 8 refuses properties that it does not have.
pub(crate) fn for_php(jobs: usize) -> Vec<Vec<u8>> {
    (0..jobs).map(|n| job("Counted", n, None)).collect()
}

/// Payloads of about this many bytes for `App\Jobs\Counted`, or string jobs if an object does not fit.
pub(crate) fn of_size(jobs: usize, bytes: usize) -> Vec<Vec<u8>> {
    let least = job("Counted", 0, Some("")).len();
    let of = |n| {
        if bytes < least {
            string_job(n)
        } else {
            job("Counted", n, Some(&"x".repeat(bytes - least)))
        }
    };
    (0..jobs).map(of).collect()
}

/// Jobs that artisand does not run.
pub(crate) fn of_others(jobs: usize) -> Vec<Vec<u8>> {
    let note = "x".repeat(130);
    (0..jobs).map(|n| job("Another", n, Some(&note))).collect()
}

/// Adds what Horizon's queue adds to payloads.
pub(crate) fn with_horizon(payloads: &mut [Vec<u8>]) {
    let fields = br#","type":"job","tags":[],"silenced":false,"pushedAt":"1760000000.1234"}"#;
    for payload in payloads {
        payload.truncate(payload.len() - 1);
        payload.extend_from_slice(fields);
    }
}

/// A payload as Laravel 13 writes it, with the number in the serialized command.
fn job(class: &str, n: usize, note: Option<&str>) -> Vec<u8> {
    let note = note.map(|note| format!("s:4:\\\"note\\\";s:{}:\\\"{note}\\\";", note.len()));
    let (properties, note) = (1 + usize::from(note.is_some()), note.unwrap_or_default());
    format!(
        "{{\"uuid\":\"{n:08x}-0000-4000-8000-{n:012x}\",\"displayName\":\"App\\\\Jobs\\\\{class}\",\
         \"job\":\"Illuminate\\\\Queue\\\\CallQueuedHandler@call\",\"maxTries\":null,\"maxExceptions\":null,\
         \"failOnTimeout\":false,\"backoff\":null,\"timeout\":null,\"retryUntil\":null,\
         \"deleteWhenMissingModels\":false,\"data\":{{\"commandName\":\"App\\\\Jobs\\\\{class}\",\
         \"command\":\"O:16:\\\"App\\\\Jobs\\\\{class}\\\":{properties}:{{s:1:\\\"n\\\";i:{n};{note}}}\",\
         \"batchId\":null}},\"createdAt\":1760000000,\"id\":\"{n:032}\",\"attempts\":0,\"delay\":null}}"
    )
    .into_bytes()
}

/// `Queue::push('Counted@run', ['n' => 1])` of Laravel 6: the smallest payload there is.
fn string_job(n: usize) -> Vec<u8> {
    format!(
        "{{\"uuid\":\"{n:08x}-0000-4000-8000-{n:012x}\",\"displayName\":\"Counted\",\"job\":\"Counted@run\",\
         \"maxTries\":null,\"timeout\":null,\"data\":{{\"n\":{n}}},\"id\":\"{n:032}\",\"attempts\":0}}"
    )
    .into_bytes()
}
