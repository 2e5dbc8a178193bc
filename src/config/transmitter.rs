//! `[transmitter]`: whether this fabric transmits security events, and its base URL.

use super::TransmitterConfig;
use super::checker::{Checker, own_address};
use super::schema;
use super::schema::{Mode, Settings};
use crate::tls::KeyPairFiles;

/// Without the section, a production node transmits nothing, because its base URL is unknown; in development mode the
/// base URL is that of its listener.
pub(super) fn check(settings: &Settings, checker: &mut Checker) -> Option<TransmitterConfig> {
    let base_url = match (&settings.transmitter, settings.node.mode) {
        (None, Mode::Production) => return None,
        (None, Mode::Development) => Some(format!("http://{}", settings.listen.http)),
        (Some(section), _) => {
            let base_url = checker.require("transmitter.base_url", section.base_url.as_deref());
            base_url.and_then(|text| checker.keep("transmitter.base_url", own_address(text)))
        }
    };
    let certificate = settings.transmitter.as_ref().and_then(|section| certificate(section, checker));
    base_url.map(|base_url| TransmitterConfig { base_url, certificate })
}

/// Client certificate of pushes: both files or neither.
fn certificate(section: &schema::TransmitterSection, checker: &mut Checker) -> Option<KeyPairFiles> {
    if section.certificate.is_none() && section.private_key.is_none() {
        return None;
    }
    let certificate = checker.require("transmitter.certificate", section.certificate.as_deref());
    let private_key = checker.require("transmitter.private_key", section.private_key.as_deref());
    Some(KeyPairFiles { certificate: certificate?.to_owned(), private_key: private_key?.to_owned() })
}
