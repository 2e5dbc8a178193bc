//! Every limit of the client.

use std::time::Duration;

// --- client of a node ----------------------------------------------------------------------------

/// Maximum wait for the response to one request at one node, if the client states no other.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum response body: a whole policy bundle as JSON.
pub const RESPONSE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum rows of a list, over all pages.
pub const LIST_ROWS_MAX: usize = 100_000;
/// Maximum endpoints of one client.
pub const ENDPOINTS_MAX: usize = 16;
/// Maximum line of the live feed, and maximum event.
pub const EVENT_BYTES_MAX: usize = 64 * 1024;
/// Maximum silence of the live feed, heartbeats included.
pub const EVENTS_SILENCE_TIMEOUT: Duration = Duration::from_secs(45);
/// Maximum time of one request for the live feed. A node ends it sooner.
pub const EVENTS_REQUEST_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Maximum time of a download: a state of 256 GiB over 30 MB/s.
pub const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3 * 3600);
/// Maximum silence of a download: a node computes the digests of its files before it sends the first byte.
pub const DOWNLOAD_SILENCE_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum file of certificates or private keys.
pub const PEM_BYTES_MAX: u64 = 1024 * 1024;
