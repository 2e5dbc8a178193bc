//! Refusal of weak RSA public keys.

use super::key_set::Error;
use crate::limits;

/// Refuses a modulus or exponent that makes signatures forgeable or very slow to verify. Both are big-endian.
///
/// # Errors
/// [`Error::KeyMalformed`] for a leading zero (RFC 7518 §2, `Base64urlUInt`); [`Error::KeyWeak`] for a modulus that is
/// even or not of 2048 to 8192 bits, an exponent that is even, below 3 or above 2^33, or a modulus of the generator of
/// CVE-2017-15361 (ROCA).
pub(super) fn refuse_weak(modulus: &[u8], exponent: &[u8]) -> Result<(), Error> {
    let (Some(&first), Some(&last)) = (modulus.first(), modulus.last()) else {
        return Err(Error::KeyMalformed);
    };
    if first == 0 || exponent.first().is_none_or(|&byte| byte == 0) {
        return Err(Error::KeyMalformed);
    }
    let bits = modulus.len() * 8 - first.leading_zeros() as usize;
    if !(limits::RSA_MODULUS_BITS_MIN..=limits::RSA_MODULUS_BITS_MAX).contains(&bits) || last % 2 == 0 {
        return Err(Error::KeyWeak);
    }
    if exponent.len() > 5 {
        return Err(Error::KeyWeak);
    }
    let exponent = exponent.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
    if exponent < 3 || exponent % 2 == 0 || exponent > 1 << 33 {
        return Err(Error::KeyWeak);
    }
    if is_roca(modulus) { Err(Error::KeyWeak) } else { Ok(()) }
}

/// Primes that distinguish a ROCA modulus; a random one passes all with probability 2^-28.
const ROCA_PRIMES: [u32; 17] = [11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157];

/// The flawed generator creates primes that are powers of 65537 modulo a product of small primes; so is their product.
fn is_roca(modulus: &[u8]) -> bool {
    ROCA_PRIMES.iter().all(|&prime| {
        let remainder = modulus.iter().fold(0, |value, &byte| (value << 8 | u32::from(byte)) % prime);
        let powers = std::iter::successors(Some(1), |&power| Some(power * (65537 % prime) % prime));
        powers.take(prime as usize).any(|power| power == remainder)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power_of_65537(exponent: usize) -> Vec<u8> {
        let mut value = vec![1u8];
        for _ in 0..exponent {
            // value * 65537 = (value << 16) + value
            let mut shifted = value.clone();
            shifted.extend([0, 0]);
            let mut carry = 0u16;
            for offset in 0..shifted.len() {
                let at = shifted.len() - 1 - offset;
                let low = value.len().checked_sub(offset + 1).map_or(0, |index| value[index]);
                let sum = u16::from(shifted[at]) + u16::from(low) + carry;
                shifted[at] = sum.to_be_bytes()[1];
                carry = sum >> 8;
            }
            if carry > 0 {
                shifted.insert(0, carry.to_be_bytes()[1]);
            }
            value = shifted;
        }
        value
    }

    fn random_looking(bytes: usize) -> Vec<u8> {
        let mut modulus: Vec<u8> = (0..bytes).map(|i| (i * i * 31 + i * 7 + 201).to_le_bytes()[0]).collect();
        modulus[0] |= 0x80;
        modulus[bytes - 1] |= 1;
        modulus
    }

    #[test]
    fn roca_modulus_is_refused() {
        let modulus = power_of_65537(128);
        assert_eq!(modulus.len(), 257);
        assert_eq!(refuse_weak(&modulus, &[1, 0, 1]), Err(Error::KeyWeak));
        assert_eq!(refuse_weak(&random_looking(256), &[1, 0, 1]), Ok(()));
    }

    #[test]
    fn modulus_even_or_not_of_2048_to_8192_bits_is_refused() {
        let mut almost = random_looking(256);
        almost[0] = 0x7f;
        assert_eq!(refuse_weak(&almost, &[1, 0, 1]), Err(Error::KeyWeak));
        assert_eq!(refuse_weak(&random_looking(128), &[1, 0, 1]), Err(Error::KeyWeak));
        assert_eq!(refuse_weak(&random_looking(1025), &[1, 0, 1]), Err(Error::KeyWeak));
        let mut even = random_looking(256);
        even[255] &= 0xfe;
        assert_eq!(refuse_weak(&even, &[1, 0, 1]), Err(Error::KeyWeak));
    }

    #[test]
    fn exponent_one_even_huge_or_padded_is_refused() {
        let modulus = random_looking(256);
        for exponent in [&[1][..], &[2], &[1, 0, 0], &[0xff; 5], &[1; 9]] {
            assert_eq!(refuse_weak(&modulus, exponent), Err(Error::KeyWeak), "{exponent:?}");
        }
        for exponent in [&[][..], &[0], &[0, 1, 0, 1]] {
            assert_eq!(refuse_weak(&modulus, exponent), Err(Error::KeyMalformed), "{exponent:?}");
        }
        assert_eq!(refuse_weak(&modulus, &[3]), Ok(()));
    }
}
