//! Cache of verified signatures: a credential is often exchanged many times, and verification costs half of an
//! exchange (design §5).
//!
//! The key of an entry is a digest of the whole token, the issuer, and the thumbprint of a key in the issuer's
//! current set: entries of a withdrawn key are not found. An entry proves nothing about times, audience, revocation or
//! policy; those are checked every time.

use std::sync::Arc;

use moka::sync::Cache;

use super::Error;
use super::claims::Claims;
use super::jws::Compact;
use super::key_set::VerifyingKey;
use crate::clock::Timestamp;
use crate::limits;

/// [`Compact::digest_under`].
type Key = [u8; 32];

/// Bytes of the cache for an entry, beside its claims.
const ENTRY_BYTES: usize = 512;

/// Verified signatures, bounded by [`limits::SIGNATURE_CACHE_BYTES_MAX`].
#[derive(Clone)]
pub struct SignatureCache(Cache<Key, Arc<Claims>>);

impl Default for SignatureCache {
    fn default() -> Self {
        let bytes = |_: &Key, claims: &Arc<Claims>| {
            u32::try_from(ENTRY_BYTES + claims.memory_bytes()).unwrap_or(u32::MAX)
        };
        Self(Cache::builder().max_capacity(limits::SIGNATURE_CACHE_BYTES_MAX).weigher(bytes).build())
    }
}

impl SignatureCache {
    /// Estimated memory of the entries, at most [`limits::SIGNATURE_CACHE_BYTES_MAX`].
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.0.run_pending_tasks();
        self.0.weighted_size()
    }

    /// The claims of `token` under the signature of `key`, a key in the current set of the issuer `iss`.
    ///
    /// # Errors
    /// As [`Compact::verify`] and [`Claims::read`]; refusals are not cached.
    pub fn verify(
        &self,
        token: &Compact<'_>,
        iss: &str,
        key: &VerifyingKey,
        now: Timestamp,
    ) -> Result<Arc<Claims>, Error> {
        let entry = token.digest_under(key.thumbprint(), iss);
        if let Some(claims) = self.0.get(&entry) {
            if now >= claims.exp.plus(limits::LEEWAY) {
                self.0.invalidate(&entry);
            }
            return Ok(claims);
        }
        let claims = Arc::new(Claims::read(&token.verify(key)?)?);
        if now < claims.exp.plus(limits::LEEWAY) {
            self.0.insert(entry, Arc::clone(&claims));
        }
        Ok(claims)
    }

    #[cfg(test)]
    fn holds(&self, token: &Compact<'_>, iss: &str, key: &VerifyingKey) -> bool {
        self.0.contains_key(&token.digest_under(key.thumbprint(), iss))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::token::testing::{NOW_SECS, Signer, now};

    const ISS: &str = "https://issuer.example";

    fn token(signer: &Signer) -> String {
        let claims = json!({"sub": "x", "aud": "y", "iat": NOW_SECS, "exp": NOW_SECS + 60});
        signer.sign(&json!({"alg": "ES256"}), &claims)
    }

    #[test]
    fn valid_signature_is_cached_until_the_token_expires() {
        let (cache, signer) = (SignatureCache::default(), Signer::es256());
        let (text, key) = (token(&signer), signer.verifying("k"));
        let compact = Compact::parse(&text).expect("compact");
        let first = cache.verify(&compact, ISS, &key, now()).expect("good");
        assert!(cache.holds(&compact, ISS, &key));
        let second = cache.verify(&compact, ISS, &key, now()).expect("good");
        assert!(Arc::ptr_eq(&first, &second));
        let dead = now().plus(Duration::from_secs(65));
        cache.verify(&compact, ISS, &key, dead).expect("times are checked elsewhere");
        assert!(!cache.holds(&compact, ISS, &key));
        cache.verify(&compact, ISS, &key, dead).expect("verified anew");
        assert!(!cache.holds(&compact, ISS, &key));
    }

    #[test]
    fn cache_misses_for_another_text_key_or_issuer() {
        let (cache, signer, other) = (SignatureCache::default(), Signer::es256(), Signer::es256());
        let (text, key) = (token(&signer), signer.verifying("k"));
        let compact = Compact::parse(&text).expect("compact");
        cache.verify(&compact, ISS, &key, now()).expect("good");
        // The same kid under another key: the issuer rotated.
        let refused = cache.verify(&compact, ISS, &other.verifying("k"), now()).err();
        assert_eq!(refused, Some(Error::SignatureInvalid));
        assert!(!cache.holds(&compact, "https://other.example", &key));
        // The same header and payload under a damaged signature.
        let (input, _) = text.rsplit_once('.').expect("dots");
        let damaged = format!("{input}.{}", "A".repeat(86));
        let damaged = Compact::parse(&damaged).expect("compact");
        assert_eq!(cache.verify(&damaged, ISS, &key, now()).err(), Some(Error::SignatureInvalid));
    }

    #[test]
    fn refusal_is_not_cached() {
        let (cache, signer) = (SignatureCache::default(), Signer::es256());
        let text = signer.sign(&json!({"alg": "ES256"}), &json!({"sub": "x"}));
        let compact = Compact::parse(&text).expect("compact");
        let key = signer.verifying("k");
        assert_eq!(cache.verify(&compact, ISS, &key, now()).err(), Some(Error::ClaimMissing("aud")));
        assert!(!cache.holds(&compact, ISS, &key));
    }

    #[test]
    fn large_claims_weigh_more_and_the_limit_holds() {
        let (cache, signer) = (SignatureCache::default(), Signer::es256());
        let (text, key) = (token(&signer), signer.verifying("k"));
        let compact = Compact::parse(&text).expect("compact");
        let small = cache.verify(&compact, ISS, &key, now()).expect("good");
        let mut large = Claims::clone(&small);
        large.others.insert("groups".to_owned(), vec!["x".repeat(1000); 1000].into());
        let large = Arc::new(large);
        assert!(small.memory_bytes() < 2000, "{}", small.memory_bytes());
        assert!(large.memory_bytes() > 1_000_000, "{}", large.memory_bytes());
        let most = limits::SIGNATURE_CACHE_BYTES_MAX / 1_000_000;
        for at in 0..2 * most {
            cache.0.insert(compact.digest_under("k", &at.to_string()), Arc::clone(&large));
        }
        assert!(cache.memory_bytes() <= limits::SIGNATURE_CACHE_BYTES_MAX);
        assert!((1..=most).contains(&cache.0.entry_count()), "{}", cache.0.entry_count());
    }
}
