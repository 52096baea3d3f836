//! What may come next in a text whose form is given.

use opara_models::engine::Guidance;

/// Says what may come next in a text, and hears what came.
pub trait Guide: Send {
    /// What may come now.
    ///
    /// # Errors
    /// The reason why it cannot be said: the text fails.
    fn next(&mut self) -> Result<Guidance, String>;

    /// A token came.
    ///
    /// # Errors
    /// The reason why it could not.
    fn take(&mut self, token: u32) -> Result<(), String>;
}
