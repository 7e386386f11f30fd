//! By what a reserved job is found again.

/// Names a reservation.
///
/// The number of the reservation is never used again by this process: it tells apart two reservations of the same
/// job on one connection, where the first ran out, and it ends with its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    /// Number of the connection that reserved the job.
    pub(super) holder: u64,
    /// Number of the reservation.
    pub(super) reservation: u64,
    /// The server's number of the job.
    pub(super) id: u64,
}

impl Ticket {
    pub(super) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let numbers = [self.holder, self.reservation, self.id];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes
    }

    /// The ticket in these bytes; `None` if they are of another driver.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let &[holder, reservation, id] = numbers else {
            return None;
        };
        let [holder, reservation, id] = [holder, reservation, id].map(u64::from_be_bytes);
        Some(Self {
            holder,
            reservation,
            id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_read_as_they_were_written() {
        let ticket = Ticket {
            holder: 1,
            reservation: u64::MAX,
            id: 3,
        };
        assert_eq!(Ticket::read(&ticket.to_bytes()), Some(ticket));
        for bytes in [&b""[..], &[0; 23], &[0; 25], &[0; 32]] {
            assert_eq!(Ticket::read(bytes), None);
        }
    }
}
