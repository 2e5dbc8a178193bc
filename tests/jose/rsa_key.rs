//! RSA by arithmetic (RFC 8017 §5), to sign what no library signs. For tests: it leaks its key through
//! time.

use aws_lc_rs::rand;
use num_bigint::BigUint;
use serde_json::{Value, json};

use super::encode;

/// Two primes make a modulus of twice their size.
pub struct RsaKey {
    modulus: BigUint,
    exponent: BigUint,
    private_exponent: BigUint,
}

impl RsaKey {
    /// A key as they should be.
    pub fn generate(modulus_bits: usize) -> Self {
        Self::search(65537, || random(modulus_bits / 2))
    }

    /// One whose every signature is the encoded message itself.
    pub fn with_exponent_one() -> Self {
        Self::search(1, || random(1024))
    }

    /// One whose primes are powers of 65537 modulo the product of the first 39 primes, as the generator
    /// of CVE-2017-15361 made them.
    pub fn roca() -> Self {
        let smooth: BigUint = small_primes().take_while(|prime| *prime <= 167).product();
        Self::search(65537, || {
            let power = BigUint::from(65537u32).modpow(&random(64), &smooth);
            random(1024) / &smooth * &smooth + power
        })
    }

    fn search(exponent: u32, candidate: impl Fn() -> BigUint) -> Self {
        let prime = || loop {
            let candidate = candidate();
            if is_prime(&candidate) {
                return candidate;
            }
        };
        let exponent = BigUint::from(exponent);
        loop {
            let (p, q) = (prime(), prime());
            let order = (&p - 1u32) * (&q - 1u32);
            if let Some(private_exponent) = exponent.modinv(&order) {
                return Self { modulus: p * q, exponent, private_exponent };
            }
        }
    }

    /// n.
    pub fn modulus(&self) -> &BigUint {
        &self.modulus
    }

    /// Length of the modulus.
    pub fn bytes(&self) -> usize {
        self.modulus.to_bytes_be().len()
    }

    /// The public half under the name `k`.
    pub fn jwk(&self, alg: &str) -> Value {
        json!({"kty": "RSA", "kid": "k", "alg": alg,
            "n": encode(self.modulus.to_bytes_be()), "e": encode(self.exponent.to_bytes_be())})
    }

    /// The signature of an encoded message, whatever that is (RFC 8017 §5.2.1).
    pub fn sign(&self, encoded: &[u8]) -> Vec<u8> {
        let message = BigUint::from_bytes_be(encoded);
        assert!(message < self.modulus, "an encoded message is below the modulus");
        let signature = message.modpow(&self.private_exponent, &self.modulus);
        let opened = signature.modpow(&self.exponent, &self.modulus);
        assert_eq!(opened, message, "the signature opens to what was signed");
        padded(&signature, self.bytes())
    }
}

/// `number` in at least `bytes` bytes, most significant first.
pub fn padded(number: &BigUint, bytes: usize) -> Vec<u8> {
    let digits = number.to_bytes_be();
    [vec![0; bytes.saturating_sub(digits.len())], digits].concat()
}

/// An odd number of exactly `bits` with its two highest bits set, so that a product of two has all its
/// bits.
fn random(bits: usize) -> BigUint {
    let mut bytes = vec![0; bits / 8];
    rand::fill(&mut bytes).expect("random bytes");
    bytes[0] |= 0xc0;
    bytes[bits / 8 - 1] |= 1;
    BigUint::from_bytes_be(&bytes)
}

fn small_primes() -> impl Iterator<Item = u32> {
    (2..2000u32).filter(|number| (2..*number).take_while(|d| d * d <= *number).all(|d| number % d != 0))
}

/// Fermat's test: a number drawn at random that passes it is prime but for odds nobody will meet.
fn is_prime(candidate: &BigUint) -> bool {
    let zero = BigUint::ZERO;
    !small_primes().any(|prime| candidate % prime == zero)
        && BigUint::from(2u32).modpow(&(candidate - 1u32), candidate) == BigUint::from(1u32)
}
