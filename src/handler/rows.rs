//! Rows of models, read by handlers.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, Deserializer};

use super::context::JobContext;
use super::model::{ModelError, ModelIdentifier, Models};

impl JobContext {
    /// Reads the row of one of the job's models from the app's database, into any type that serde can read.
    ///
    /// Columns have the values that PHP's database layer gives, and are converted
    /// to what the type asks for.
    /// Soft-deleted rows are found. In a blocking handler, wait for it with
    /// `tokio::runtime::Handle::current().block_on(..)`.
    ///
    /// # Errors
    ///
    /// [`ModelError::NotFound`] if the row is gone. If the handler returns it,
    /// directly or as the cause of another error, the job ends as Laravel ends
    /// one whose model is gone.
    pub async fn model<Row: DeserializeOwned>(
        &self,
        identifier: &ModelIdentifier,
    ) -> Result<Row, ModelError> {
        self.known_models()?.one(identifier).await
    }

    /// Reads the rows of a collection of models by one query, in the collection's order.
    ///
    /// Missing rows are left out, as in PHP; an empty collection sends no query.
    ///
    /// # Errors
    ///
    /// [`ModelError`].
    pub async fn models<Row: DeserializeOwned>(
        &self,
        identifier: &ModelIdentifier,
    ) -> Result<Vec<Row>, ModelError> {
        self.known_models()?.many(identifier).await
    }

    fn known_models(&self) -> Result<&Models, ModelError> {
        let models = self.services().models.as_deref();
        models.ok_or(ModelError::NoManifest)
    }
}

/// A model in a handler's struct, with the type of its row.
///
/// ```no_run
/// use artisand::handler::{JobContext, Model, ModelError};
///
/// #[derive(serde::Deserialize)]
/// struct Podcast {
///     id: u64,
///     title: String,
/// }
///
/// #[derive(serde::Deserialize)]
/// struct ProcessPodcast {
///     podcast: Model<Podcast>,
/// }
///
/// async fn process(job: ProcessPodcast, context: JobContext) -> Result<(), ModelError> {
///     let podcast = job.podcast.load(&context).await?;
///     println!("{} {}", podcast.id, podcast.title);
///     Ok(())
/// }
/// ```
pub struct Model<Row> {
    /// The identifier in the job.
    pub identifier: ModelIdentifier,
    row: PhantomData<fn() -> Row>,
}

/// A collection of models in a handler's struct, with the type of their rows; see [`Model`].
pub struct Collection<Row> {
    /// The identifier in the job.
    pub identifier: ModelIdentifier,
    row: PhantomData<fn() -> Row>,
}

impl<Row: DeserializeOwned> Model<Row> {
    /// Reads the row; see [`JobContext::model`].
    ///
    /// # Errors
    ///
    /// [`ModelError`].
    pub async fn load(&self, context: &JobContext) -> Result<Row, ModelError> {
        context.model(&self.identifier).await
    }
}

impl<Row: DeserializeOwned> Collection<Row> {
    /// Reads the rows; see [`JobContext::models`].
    ///
    /// # Errors
    ///
    /// [`ModelError`].
    pub async fn load(&self, context: &JobContext) -> Result<Vec<Row>, ModelError> {
        context.models(&self.identifier).await
    }
}

macro_rules! wraps_identifier {
    ($($name:ident)*) => {$(
        impl<Row> fmt::Debug for $name<Row> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.identifier).finish()
            }
        }

        impl<Row> Clone for $name<Row> {
            fn clone(&self) -> Self {
                Self { identifier: self.identifier.clone(), row: PhantomData }
            }
        }

        impl<'de, Row> Deserialize<'de> for $name<Row> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let identifier = ModelIdentifier::deserialize(deserializer)?;
                Ok(Self { identifier, row: PhantomData })
            }
        }
    )*};
}

wraps_identifier! { Model Collection }
