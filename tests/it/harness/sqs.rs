//! An SQS that does what moto does not: some short receives find nothing, it loses replies, delivers twice, refuses,
//! and counts requests. It speaks the JSON protocol of the SDK, as far as queues need it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a request may take to come, or to be let go.
const SOON: Duration = Duration::from_secs(60);

/// A running server. It takes connections until the test ends.
pub(crate) struct Sqs {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Messages by the path of their queue.
    queues: BTreeMap<String, Vec<Message>>,
    /// Requests so far, by action.
    requests: BTreeMap<String, usize>,
    /// Queues for which a long poll has come.
    polled: BTreeSet<String>,
    /// The queues' own visibility timeout in seconds; 30 if nothing is said.
    visibility: Option<u64>,
    /// Actions whose next replies are lost, after they were carried out.
    losses: BTreeMap<String, usize>,
    /// Actions whose next request is to be held.
    to_hold: BTreeSet<String>,
    /// Actions of which a request is held: it has come, and is not carried out.
    held: BTreeSet<String>,
    /// Actions that the key is not allowed.
    denied: BTreeSet<String>,
    /// Receipts without a wait that find nothing, whatever there is.
    lies: usize,
    /// Identities that FIFO queues have taken.
    taken: BTreeSet<String>,
    /// The number of the last message and of the last receipt.
    last: u64,
}

struct Message {
    id: String,
    body: String,
    group: Option<String>,
    visible: Instant,
    received: Instant,
    receives: u32,
    receipt: String,
    is_hidden: bool,
}

/// What is answered: the status and the body.
type Answer = (u16, Value);

fn refusal(code: &str, message: &str) -> Answer {
    (
        400,
        json!({"__type": format!("com.amazonaws.sqs#{code}"), "message": message}),
    )
}

impl Sqs {
    /// Listens on a port of its own.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<Shared>::default();
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || shared.serve(&connection.unwrap()));
            }
        });
        Self { port, shared }
    }

    /// What stands before the names of queues.
    pub(crate) fn prefix(&self) -> String {
        format!("http://127.0.0.1:{}/000000000000", self.port)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    /// How often an action was asked for; `None` for all together.
    pub(crate) fn requests(&self, action: &str) -> usize {
        self.state().requests.get(action).copied().unwrap_or(0)
    }

    /// Sets the visibility timeout of all queues, in seconds.
    pub(crate) fn set_visibility(&self, seconds: u64) {
        self.state().visibility = Some(seconds);
    }

    /// Carries out the next requests for an action, and closes the connection instead of answering.
    pub(crate) fn lose_replies(&self, action: &str, count: usize) {
        self.state().losses.insert(action.to_owned(), count);
    }

    /// Holds the next request for an action.
    pub(crate) fn hold(&self, action: &str) {
        self.state().to_hold.insert(action.to_owned());
    }

    /// Returns once a request for an action is held.
    pub(crate) async fn is_held(&self, action: &str) {
        let action = action.to_owned();
        self.wait_while(move |state| !state.held.contains(&action))
            .await;
    }

    /// Carries out the request that is held.
    pub(crate) fn let_go(&self, action: &str) {
        self.state().held.remove(action);
        self.shared.changed.notify_all();
    }

    /// How long each message of a queue stays hidden.
    pub(crate) fn hidden(&self, queue: &str) -> Vec<Duration> {
        let state = self.state();
        let messages = state.queues.get(&format!("/000000000000/{queue}"));
        let now = Instant::now();
        (messages.into_iter().flatten())
            .map(|message| message.visible.saturating_duration_since(now))
            .collect()
    }

    /// How often each message of a queue was received: an attempt of its job each.
    pub(crate) fn receives(&self, queue: &str) -> Vec<u32> {
        let state = self.state();
        let messages = state.queues.get(&format!("/000000000000/{queue}"));
        let messages = messages.into_iter().flatten();
        messages.map(|message| message.receives).collect()
    }

    /// Refuses an action from now on.
    pub(crate) fn deny(&self, action: &str) {
        self.state().denied.insert(action.to_owned());
    }

    /// Takes back `deny`.
    pub(crate) fn allow(&self, action: &str) {
        self.state().denied.remove(action);
    }

    /// Finds nothing in the next receipts that do not wait.
    pub(crate) fn lie(&self, receipts: usize) {
        self.state().lies = receipts;
    }

    /// Delivers all messages of a queue once more, as a standard queue may.
    pub(crate) fn deliver_again(&self, queue: &str) {
        let mut state = self.state();
        let queue = format!("/000000000000/{queue}");
        for message in state.queues.get_mut(&queue).into_iter().flatten() {
            message.visible = Instant::now();
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// All requests so far, by action.
    pub(crate) fn all_requests(&self) -> BTreeMap<String, usize> {
        self.state().requests.clone()
    }

    /// Returns once a long poll of a queue has come.
    pub(crate) async fn is_polled(&self, queue: &str) {
        let queue = format!("/000000000000/{queue}");
        self.wait_while(move |state| !state.polled.contains(&queue))
            .await;
    }

    async fn wait_while(&self, is_missing: impl Fn(&State) -> bool + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        let waiting = tokio::task::spawn_blocking(move || {
            let state = shared.state.lock().unwrap();
            let waiting =
                (shared.changed).wait_timeout_while(state, SOON, |state| is_missing(state));
            let waited = waiting.unwrap().1;
            assert!(!waited.timed_out(), "the request has not come");
        });
        waiting.await.unwrap();
    }

    /// Messages of all queues.
    pub(crate) fn count(&self) -> usize {
        self.state().queues.values().map(Vec::len).sum()
    }

    /// Bodies and groups of the messages of a queue.
    pub(crate) fn messages(&self, queue: &str) -> Vec<(String, Option<String>)> {
        let state = self.state();
        let messages = state.queues.get(&format!("/000000000000/{queue}"));
        let messages = messages.into_iter().flatten();
        messages
            .map(|message| (message.body.clone(), message.group.clone()))
            .collect()
    }
}

impl Shared {
    fn serve(&self, connection: &TcpStream) {
        let mut reader = BufReader::new(connection);
        while let Some((action, body)) = read(&mut reader) {
            let (status, answer) = self.answer(&action, &body);
            let mut state = self.state.lock().unwrap();
            if let Some(left) = state.losses.get_mut(&action).filter(|left| **left > 0) {
                *left -= 1;
                return;
            }
            drop(state);
            let answer = answer.to_string();
            let head = format!(
                "HTTP/1.1 {status} Said\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            if (&*connection)
                .write_all((head + &answer).as_bytes())
                .is_err()
            {
                return;
            }
        }
    }

    fn answer(&self, action: &str, body: &Value) -> Answer {
        let mut state = self.state.lock().unwrap();
        *state.requests.entry(action.to_owned()).or_default() += 1;
        if state.to_hold.remove(action) {
            state.held.insert(action.to_owned());
            self.changed.notify_all();
            let is_held = |state: &mut State| state.held.contains(action);
            state = (self.changed.wait_timeout_while(state, SOON, is_held))
                .unwrap()
                .0;
        }
        if state.denied.contains(action) {
            return refusal("AccessDenied", "the key is not allowed to do this");
        }
        let url = body["QueueUrl"].as_str().unwrap();
        let (_, queue) = url.split_once("//").unwrap().1.split_once('/').unwrap();
        let queue = format!("/{queue}");
        if queue.contains("missing") {
            return refusal("QueueDoesNotExist", "The specified queue does not exist.");
        }
        if action != "ReceiveMessage" {
            let answer = state.carry_out(action, &queue, body);
            drop(state);
            self.changed.notify_all();
            return answer;
        }
        let wait = body["WaitTimeSeconds"].as_u64().unwrap_or(0);
        if wait > 0 && state.polled.insert(queue.clone()) {
            self.changed.notify_all();
        }
        let until = Instant::now() + Duration::from_secs(wait);
        loop {
            let found = state.receive(&queue, body, wait > 0);
            let now = Instant::now();
            if !found.is_empty() || now >= until {
                return (200, json!({"Messages": found}));
            }
            // A reservation may end meanwhile.
            let pause = (until - now).min(Duration::from_millis(50));
            state = self.changed.wait_timeout(state, pause).unwrap().0;
        }
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn receive(&mut self, queue: &str, body: &Value, waits: bool) -> Vec<Value> {
        if !waits && self.lies > 0 {
            self.lies -= 1;
            return Vec::new();
        }
        let most = body["MaxNumberOfMessages"].as_u64().unwrap_or(1);
        let own = self.visibility.unwrap_or(30);
        let visibility = body["VisibilityTimeout"].as_u64().unwrap_or(own);
        let (mut last, now) = (self.last, Instant::now());
        let messages = self.queues.entry(queue.to_owned()).or_default();
        let is_hidden = |message: &&Message| message.visible > now && message.is_hidden;
        let mut busy: BTreeSet<Option<String>> = messages
            .iter()
            .filter(is_hidden)
            .map(|message| message.group.clone())
            .collect();
        let mut found = Vec::new();
        for message in messages {
            let is_blocked = is_fifo(queue) && busy.contains(&message.group);
            if message.visible > now || is_blocked || found.len() as u64 == most {
                // A group goes on behind its first message only.
                busy.insert(message.group.clone());
                continue;
            }
            last += 1;
            message.receipt = format!("receipt-{last}");
            message.receives += 1;
            message.is_hidden = true;
            message.visible = now + Duration::from_secs(visibility);
            message.received = now;
            let mut attributes = json!({"ApproximateReceiveCount": message.receives.to_string()});
            if let Some(group) = &message.group {
                attributes["MessageGroupId"] = json!(group);
            }
            found.push(json!({
                "MessageId": message.id, "ReceiptHandle": message.receipt, "Body": message.body,
                "Attributes": attributes,
            }));
        }
        self.last = last;
        found
    }

    /// What Laravel's own client asks for.
    fn carry_out_one(&mut self, action: &str, queue: &str, body: &Value) -> Option<Answer> {
        let result = match action {
            "SendMessage" => self.send(queue, body),
            "DeleteMessage" => self.delete(queue, body),
            "ChangeMessageVisibility" => self.hide(queue, body),
            _ => return None,
        };
        Some(match result {
            Ok(id) => (200, json!({"MessageId": id})),
            Err(code) => refusal(code, "as it is"),
        })
    }

    fn carry_out(&mut self, action: &str, queue: &str, body: &Value) -> Answer {
        if let Some(answer) = self.carry_out_one(action, queue, body) {
            return answer;
        }
        let entries = body["Entries"].as_array().cloned().unwrap_or_default();
        if entries.len() > 10 {
            return refusal("TooManyEntriesInBatchRequest", "more than 10 entries");
        }
        let results: Vec<_> = match action {
            "SendMessageBatch" => {
                let sizes = entries
                    .iter()
                    .map(|entry| entry["MessageBody"].as_str().unwrap().len());
                if sizes.sum::<usize>() > 1 << 20 {
                    return refusal("BatchRequestTooLong", "longer than 1048576 bytes");
                }
                (entries.iter())
                    .map(|entry| self.send(queue, entry))
                    .collect()
            }
            "DeleteMessageBatch" => entries
                .iter()
                .map(|entry| self.delete(queue, entry))
                .collect(),
            "ChangeMessageVisibilityBatch" => entries
                .iter()
                .map(|entry| self.hide(queue, entry))
                .collect(),
            "GetQueueAttributes" => return (200, self.attributes(queue)),
            "PurgeQueue" => {
                self.queues.remove(queue);
                return (200, json!({}));
            }
            other => return refusal("InvalidAction", other),
        };
        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        for (entry, result) in entries.iter().zip(results) {
            match result {
                Ok(id) => successful.push(json!({"Id": entry["Id"], "MessageId": id, "MD5OfMessageBody": ""})),
                Err(code) => failed.push(json!({"Id": entry["Id"], "SenderFault": true, "Code": code, "Message": "as it is"})),
            }
        }
        (200, json!({"Successful": successful, "Failed": failed}))
    }

    fn send(&mut self, queue: &str, entry: &Value) -> Result<String, &'static str> {
        let id = format!("message-{}", self.next());
        let text = |key: &str| entry[key].as_str().map(str::to_owned);
        if is_fifo(queue) {
            let identity = text("MessageDeduplicationId").ok_or("MissingParameter")?;
            text("MessageGroupId").ok_or("MissingParameter")?;
            if entry["DelaySeconds"].as_u64().unwrap_or(0) > 0 {
                return Err("InvalidParameterValue");
            }
            if !self.taken.insert(format!("{queue} {identity}")) {
                return Ok(id);
            }
        }
        let delay = entry["DelaySeconds"].as_u64().unwrap_or(0);
        if delay > 900 {
            return Err("InvalidParameterValue");
        }
        let message = Message {
            id: id.clone(),
            body: text("MessageBody").unwrap(),
            group: text("MessageGroupId"),
            visible: Instant::now() + Duration::from_secs(delay),
            received: Instant::now(),
            receives: 0,
            receipt: String::new(),
            is_hidden: false,
        };
        self.queues
            .entry(queue.to_owned())
            .or_default()
            .push(message);
        Ok(id)
    }

    /// The message of a receipt, if that is its last one.
    fn of_receipt(&mut self, queue: &str, entry: &Value) -> Option<(&mut Vec<Message>, usize)> {
        let messages = self.queues.get_mut(queue)?;
        let receipt = entry["ReceiptHandle"].as_str().unwrap();
        let at = messages
            .iter()
            .position(|message| message.receipt == receipt)?;
        Some((messages, at))
    }

    /// A receipt that is none any more: a standard queue says that it has deleted the message, and has not.
    fn delete(&mut self, queue: &str, entry: &Value) -> Result<String, &'static str> {
        let is_fifo = is_fifo(queue);
        match self.of_receipt(queue, entry) {
            Some((messages, at)) if !is_fifo || messages[at].visible > Instant::now() => {
                Ok(messages.remove(at).id)
            }
            _ if is_fifo => Err("ReceiptHandleIsInvalid"),
            _ => Ok(String::new()),
        }
    }

    fn hide(&mut self, queue: &str, entry: &Value) -> Result<String, &'static str> {
        let seconds = entry["VisibilityTimeout"].as_u64().unwrap();
        let (messages, at) = self
            .of_receipt(queue, entry)
            .ok_or("ReceiptHandleIsInvalid")?;
        if messages[at].visible <= Instant::now() {
            return Err("MessageNotInflight");
        }
        // In all, since it was received.
        let hidden = messages[at].received.elapsed() + Duration::from_secs(seconds);
        if hidden > Duration::from_secs(43_200) {
            return Err("InvalidParameterValue");
        }
        messages[at].visible = Instant::now() + Duration::from_secs(seconds);
        Ok(messages[at].id.clone())
    }

    fn attributes(&self, queue: &str) -> Value {
        let (mut visible, mut delayed, mut hidden) = (0, 0, 0);
        for message in self.queues.get(queue).into_iter().flatten() {
            match (message.visible > Instant::now(), message.is_hidden) {
                (false, _) => visible += 1,
                (true, false) => delayed += 1,
                (true, true) => hidden += 1,
            }
        }
        json!({"Attributes": {
            "ApproximateNumberOfMessages": visible.to_string(),
            "ApproximateNumberOfMessagesDelayed": delayed.to_string(),
            "ApproximateNumberOfMessagesNotVisible": hidden.to_string(),
            "VisibilityTimeout": self.visibility.unwrap_or(30).to_string(),
        }})
    }
}

/// The action of the next request, and its body; `None` at the end of the connection.
fn read(reader: &mut BufReader<&TcpStream>) -> Option<(String, Value)> {
    let (mut action, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ") {
            if name.eq_ignore_ascii_case("x-amz-target") {
                value.strip_prefix("AmazonSQS.")?.clone_into(&mut action);
            } else if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().ok()?;
            }
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((action, serde_json::from_slice(&body).ok()?))
}

fn is_fifo(queue: &str) -> bool {
    queue.rsplit('.').next() == Some("fifo")
}
