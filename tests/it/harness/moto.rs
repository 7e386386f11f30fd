//! A private SQS of moto: free port, nothing on disk, killed on drop.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::process::eventually;

/// A running server. No test ever talks to a server that another program started.
pub(crate) struct Moto {
    child: Child,
    port: u16,
}

/// One request at a time: moto's own server answers several, and loses messages between them.
const SERVER: &str = "
import sys
from werkzeug.serving import run_simple
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
app = DomainDispatcherApplication(create_backend_app)
app.debug = True
run_simple('127.0.0.1', int(sys.argv[1]), app, threaded=False)
";

/// How long a server may take to answer.
const START: Duration = Duration::from_secs(120);

impl Moto {
    pub(crate) fn start() -> Self {
        let roots = std::env::var("ARTISAND_ROOTS");
        let roots = roots.unwrap_or_else(|_| "/var/lib/artisand/roots".into());
        // Another program may take the port between this check and the server's start.
        for _ in 0..5 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let child = Command::new(format!("{roots}/moto/bin/python"))
                .args(["-c", SERVER, &port.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap_or_else(|e| panic!("moto: {e} (php-interop/setup.sh installs it)"));
            let mut server = Self { child, port };
            let has_come_up = eventually("moto answers or ends", START, || {
                if server.child.try_wait().unwrap().is_some() {
                    return Some(false);
                }
                let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
                connected.is_ok().then_some(true)
            });
            if has_come_up {
                return server;
            }
        }
        panic!("no moto came up");
    }

    /// What stands before the names of queues.
    pub(crate) fn prefix(&self) -> String {
        format!("http://127.0.0.1:{}/123456789012", self.port)
    }

    /// Makes a queue whose reservations live this many seconds.
    pub(crate) fn make_queue(&self, name: &str, visibility: u32) {
        let attributes = json!({"VisibilityTimeout": visibility.to_string()});
        self.ask(
            "CreateQueue",
            &json!({"QueueName": name, "Attributes": attributes}),
        );
    }

    /// How many jobs a queue holds: visible, delayed and reserved ones.
    pub(crate) fn jobs(&self, name: &str) -> u64 {
        // moto counts the three one after another: in between, a delayed job can become a visible one, which then is in
        // neither count. It is in the next answer.
        self.count(name).max(self.count(name))
    }

    fn count(&self, name: &str) -> u64 {
        let url = format!("{}/{name}", self.prefix());
        let answer = self.ask(
            "GetQueueAttributes",
            &json!({"QueueUrl": url, "AttributeNames": ["All"]}),
        );
        ["", "Delayed", "NotVisible"]
            .map(|kind| {
                let count = &answer["Attributes"][format!("ApproximateNumberOfMessages{kind}")];
                count.as_str().unwrap().parse::<u64>().unwrap()
            })
            .iter()
            .sum()
    }

    fn ask(&self, action: &str, body: &Value) -> Value {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let body = body.to_string();
        let request = format!(
            "POST / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS.{action}\r\n\
            Authorization: AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0\r\n\
            Content-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{action}: {answer}");
        serde_json::from_str(body).unwrap_or_default()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It has ended, or ends now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
