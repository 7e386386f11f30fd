//! Reads any bytes as a reply of beanstalkd: it depends on its own bytes only, and is no longer than they are.

use artisand::queue::BeanstalkdReply as Reply;

/// Checks an input.
pub fn check(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        match Reply::read(rest) {
            Ok(Some((reply, length))) => {
                assert!((1..=rest.len()).contains(&length));
                if let Reply::Reserved { body, .. } | Reply::Found { body, .. } | Reply::Ok(body) =
                    &reply
                {
                    assert!(body.len() < length);
                }
                for cut in [0, length / 2, length - 1] {
                    assert_eq!(Reply::read(&rest[..cut]), Ok(None));
                }
                assert_eq!(Reply::read(&rest[..length]), Ok(Some((reply, length))));
                rest = &rest[length..];
            }
            Ok(None) | Err(_) => return,
        }
    }
}
