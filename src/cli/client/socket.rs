//! A node seen through the `admin.sock` in its data directory.

use std::path::Path;

use reqwest::{Response, StatusCode, Url, redirect};

use super::{Asked, Error, NodeClient};
use crate::limits;

impl NodeClient {
    /// A client of the node that serves this Unix socket.
    ///
    /// # Errors
    /// [`Error::Unprepared`].
    pub fn at_socket(path: &Path) -> Result<Self, Error> {
        let http = reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .timeout(limits::ADMIN_TIMEOUT)
            .unix_socket(path);
        let server = Url::parse("http://localhost/").map_err(|_| Error::Unprepared)?;
        Ok(Self { http: http.build().map_err(|_| Error::Unprepared)?, server })
    }

    /// `GET` of text at the path with these segments.
    ///
    /// # Errors
    /// [`Error::Foreign`] for any status but 200; as of the connection.
    pub async fn text(&self, path: &[&str]) -> Result<String, Error> {
        let request = self.request(&Asked { path, ..Asked::default() })?;
        let answer = request.send().await.map_err(|error| self.reason(&error))?;
        let is_ok = answer.status() == StatusCode::OK;
        let text = String::from_utf8(self.bytes(answer).await?).ok().filter(|_| is_ok);
        text.ok_or_else(|| Error::Foreign(self.server.clone()))
    }

    pub(super) async fn bytes(&self, mut answer: Response) -> Result<Vec<u8>, Error> {
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| self.reason(&error))? {
            if text.len() + chunk.len() > limits::ADMIN_ANSWER_BYTES_MAX {
                return Err(Error::Foreign(self.server.clone()));
            }
            text.extend_from_slice(&chunk);
        }
        Ok(text)
    }
}
