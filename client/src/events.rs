//! The live feed of a node, over one request.

use reqwest::header::{self, HeaderValue};
use reqwest::{Response, Url};

use crate::error::{self, Error};
use crate::sse::{Event, Parser};
use crate::{NodeClient, Request, limits};

/// The live feed of a node, over one request.
#[derive(Debug)]
pub struct Events {
    server: Url,
    response: Response,
    parser: Parser,
}

impl NodeClient {
    /// Subscribes to the live feed at the preferred node, or the next one that responds, after the event `after` if it is
    /// given.
    ///
    /// # Errors
    /// [`Error::Header`] if `after` is no event id; [`Error::Refused`]; those of the connection.
    pub async fn events(&self, query: &[(&str, &str)], after: Option<&str>) -> Result<Events, Error> {
        self.with_failover(true, |server| self.events_from(server, query, after)).await.0
    }

    async fn events_from(
        &self,
        server: Url,
        query: &[(&str, &str)],
        after: Option<&str>,
    ) -> Result<Events, Error> {
        let request = Request { query, ..Request::get(&["v1", "events"]) };
        let mut request = self.build(&server, &request)?.timeout(limits::EVENTS_REQUEST_TIMEOUT);
        if let Some(after) = after {
            let after = HeaderValue::try_from(after).map_err(|_| Error::Header("id of an event"))?;
            request = request.header("last-event-id", after);
        }
        let response = self.open(&server, request).await?;
        let media = response.headers().get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
        if !media.is_some_and(|media| media.starts_with("text/event-stream")) {
            return Err(Error::Foreign(server));
        }
        Ok(Events { server, response, parser: Parser::default() })
    }
}

impl Events {
    /// The next event; `None` when the node has ended the feed.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the connection broke, [`Error::Silent`], [`Error::Foreign`].
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.parser.pop() {
                return Ok(Some(event));
            }
            let chunk = tokio::time::timeout(limits::EVENTS_SILENCE_TIMEOUT, self.response.chunk()).await;
            let chunk = chunk.map_err(|_| Error::Silent(self.server.clone()))?;
            let chunk = chunk.map_err(|error| error::of_request(self.server.clone(), &error))?;
            let Some(chunk) = chunk else { return Ok(None) };
            self.parser.push(&chunk).map_err(|_| Error::Foreign(self.server.clone()))?;
        }
    }

    /// The id as of the last event that was read, from which a subscription can resume.
    #[must_use]
    pub fn last_id(&self) -> Option<&str> {
        self.parser.last_id()
    }
}
