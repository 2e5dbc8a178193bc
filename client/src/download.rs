//! A response body that is too large for memory.

use reqwest::{RequestBuilder, Response, StatusCode, Url};

use crate::error::{self, Error};
use crate::{NodeClient, Request, limits};

/// A response that is read part by part.
#[derive(Debug)]
pub struct Download {
    server: Url,
    response: Response,
}

impl NodeClient {
    /// `GET` of bytes at the path with these segments, from the preferred node, or the next one that responds.
    ///
    /// # Errors
    /// [`Error::Refused`]; those of the connection.
    pub async fn download(&self, path: &[&str]) -> Result<Download, Error> {
        self.with_failover(true, |server| self.download_from(server, path)).await.0
    }

    async fn download_from(&self, server: Url, path: &[&str]) -> Result<Download, Error> {
        let request = self.build(&server, &Request::get(path))?.timeout(limits::DOWNLOAD_TIMEOUT);
        let response = self.open(&server, request).await?;
        Ok(Download { server, response })
    }

    /// Sends a request whose response is read part by part.
    pub(crate) async fn open(&self, server: &Url, request: RequestBuilder) -> Result<Response, Error> {
        let sent = tokio::time::timeout(limits::REQUEST_TIMEOUT, request.send()).await;
        let response = sent.map_err(|_| Error::TimedOut(server.clone()))?;
        let response = response.map_err(|error| error::of_request(server.clone(), &error))?;
        if response.status() != StatusCode::OK {
            self.read(server, response).await?;
            return Err(Error::Foreign(server.clone()));
        }
        Ok(response)
    }
}

impl Download {
    /// The next part; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the connection broke, [`Error::Silent`].
    pub async fn next(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Error> {
        let part = tokio::time::timeout(limits::DOWNLOAD_SILENCE_TIMEOUT, self.response.chunk()).await;
        let part = part.map_err(|_| Error::TimedOut(self.server.clone()))?;
        part.map_err(|_| Error::Interrupted(self.server.clone()))
    }
}
