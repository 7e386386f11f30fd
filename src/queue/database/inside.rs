//! Pushes a job on a connection of the caller.

use super::DatabaseQueue;
use crate::connection::{LockPlace, Param, SqlConnection};
use crate::queue::{Claim, InsideError, Push, Queue as _};

impl DatabaseQueue {
    pub(super) async fn push_for(
        &self,
        connection: &mut dyn SqlConnection,
        push: &Push,
    ) -> Result<bool, InsideError> {
        if connection.kind() != self.table.kind() {
            return Err(InsideError::Elsewhere("in another kind of database"));
        }
        if let Some(claim) = &push.claim
            && !self.claims_on(connection, claim).await?
        {
            return Ok(false);
        }
        let row = self.row(push).ok_or(InsideError::NotText)?;
        let sql = format!(
            "insert into {} (\"queue\", \"attempts\", \"reserved_at\", \"available_at\", \"created_at\", \"payload\") \
             values (?, 0, null, {}, {}, ?)",
            self.table.name, row.available_at.0, row.created_at.0
        );
        let params = [Param::Text(&row.queue), Param::Text(&row.payload)];
        connection.run(&sql, &params).await?;
        Ok(true)
    }

    async fn claims_on(
        &self,
        connection: &mut dyn SqlConnection,
        claim: &Claim,
    ) -> Result<bool, InsideError> {
        let LockPlace::Database(place) = &claim.place else {
            return Ok(true);
        };
        let [insert, update] = self.claim_statements(place, claim.ttl, self.now());
        let (key, owner) = (&place.key, &claim.owner);
        place.database.check_key(key).map_err(InsideError::Lock)?;
        let params = [key.into(), owner.into()];
        if connection.run(&insert, &params).await? == 1 {
            return Ok(true);
        }
        let params = [owner.into(), key.into()];
        Ok(connection.run(&update, &params).await? > 0)
    }
}
