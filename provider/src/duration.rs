//! Durations as Terraform states them: `20s`, `2m`, `1h30m`.

use std::time::Duration;

/// The duration in `text`: numbers with the units `h`, `m`, `s` or `ms`. Neither zero nor more than `max`.
///
/// # Errors
/// The rule that it breaks.
pub fn parse(text: &str, max: Duration) -> Result<Duration, String> {
    let rule = || format!("must be a duration like 20s or 2m, more than 0 and at most {} s", max.as_secs());
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(rule)?;
        let (number, behind) = rest.split_at(digits);
        let unit = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let millis: u64 = match unit {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return Err(rule()),
        };
        let number: u64 = number.parse().map_err(|_| rule())?;
        let part = Duration::from_millis(number.checked_mul(millis).ok_or_else(rule)?);
        total = total.checked_add(part).ok_or_else(rule)?;
        rest = behind;
    }
    if total.is_zero() || total > max { Err(rule()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units_are_added() {
        let parsed = |text| parse(text, Duration::from_secs(7200)).expect(text);
        assert_eq!(parsed("20s"), Duration::from_secs(20));
        assert_eq!(parsed("1h30m"), Duration::from_secs(5400));
        assert_eq!(parsed("1s500ms"), Duration::from_millis(1500));
        assert_eq!(parsed("2h"), Duration::from_secs(7200));
    }

    #[test]
    fn malformed_zero_and_too_long_durations_are_refused() {
        let max = Duration::from_secs(60);
        for text in ["", "20", "s", "20x", "-1s", "1.5s", "0s", "61s", "18446744073709551615h", "1 s"] {
            assert!(parse(text, max).is_err(), "{text}");
        }
    }
}
