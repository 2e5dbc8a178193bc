//! Values in MessagePack, as Terraform sends them.
//!
//! Every extension type is an unknown value: Terraform adds what it knows of the value, which is not used here. A set is
//! an array. A number that is no integer is refused.

use super::{Error, Object, Value};
use crate::limits;
use crate::schema::{Attribute, Type};

/// The object in `bytes`; `None` for null.
///
/// # Errors
/// [`Error`], if it is not exactly one object with these attributes.
pub fn decode(bytes: &[u8], attributes: &'static [Attribute]) -> Result<Option<Object>, Error> {
    let mut reader = Reader { rest: bytes, depth: 0 };
    let item = reader.item()?;
    if !reader.rest.is_empty() {
        return Err(Error::Malformed);
    }
    match item {
        Item::Nil => Ok(None),
        item => object(item, attributes).map(Some),
    }
}

/// An object, or null, in MessagePack.
#[must_use]
pub fn encode(object: Option<&Object>, attributes: &[Attribute]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match object {
        None => bytes.push(NIL),
        Some(object) => write_object(&mut bytes, object, attributes),
    }
    bytes
}

const NIL: u8 = 0xc0;

/// MessagePack without types of a schema.
enum Item {
    Nil,
    Bool(bool),
    Integer(i64),
    Fraction(f64),
    Text(String),
    Array(Vec<Item>),
    Map(Vec<(String, Item)>),
    Extension,
}

struct Reader<'b> {
    rest: &'b [u8],
    depth: usize,
}

impl<'b> Reader<'b> {
    fn item(&mut self) -> Result<Item, Error> {
        let [kind] = self.array()?;
        Ok(match kind {
            0x00..=0x7f => Item::Integer(kind.into()),
            0x80..=0x8f => self.map(usize::from(kind & 0x0f))?,
            0x90..=0x9f => self.list(usize::from(kind & 0x0f))?,
            0xa0..=0xbf => self.text(usize::from(kind & 0x1f))?,
            NIL => Item::Nil,
            0xc2 => Item::Bool(false),
            0xc3 => Item::Bool(true),
            0xc7..=0xc9 => {
                let bytes = self.length(kind - 0xc7)?;
                self.extension(bytes)?
            }
            0xca => Item::Fraction(f32::from_be_bytes(self.array()?).into()),
            0xcb => Item::Fraction(f64::from_be_bytes(self.array()?)),
            0xcc => Item::Integer(u8::from_be_bytes(self.array()?).into()),
            0xcd => Item::Integer(u16::from_be_bytes(self.array()?).into()),
            0xce => Item::Integer(u32::from_be_bytes(self.array()?).into()),
            0xcf => {
                let number = u64::from_be_bytes(self.array()?);
                Item::Integer(i64::try_from(number).map_err(|_| Error::Malformed)?)
            }
            0xd0 => Item::Integer(i8::from_be_bytes(self.array()?).into()),
            0xd1 => Item::Integer(i16::from_be_bytes(self.array()?).into()),
            0xd2 => Item::Integer(i32::from_be_bytes(self.array()?).into()),
            0xd3 => Item::Integer(i64::from_be_bytes(self.array()?)),
            0xd4..=0xd8 => self.extension(1 << (kind - 0xd4))?,
            0xd9..=0xdb => {
                let bytes = self.length(kind - 0xd9)?;
                self.text(bytes)?
            }
            0xdc | 0xdd => {
                let members = self.length(kind - 0xdb)?;
                self.list(members)?
            }
            0xde | 0xdf => {
                let members = self.length(kind - 0xdd)?;
                self.map(members)?
            }
            0xe0..=0xff => Item::Integer(i8::from_be_bytes([kind]).into()),
            // Bytes, and a code that is never used.
            0xc1 | 0xc4..=0xc6 => return Err(Error::Malformed),
        })
    }

    fn take(&mut self, bytes: usize) -> Result<&'b [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Error::Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| Error::Malformed)
    }

    /// A length of 2^`width` bytes.
    fn length(&mut self, width: u8) -> Result<usize, Error> {
        let bytes = self.take(1 << width)?;
        bytes
            .iter()
            .try_fold(0_usize, |length, byte| length.checked_mul(256)?.checked_add(usize::from(*byte)))
            .ok_or(Error::Malformed)
    }

    fn text(&mut self, bytes: usize) -> Result<Item, Error> {
        let text = std::str::from_utf8(self.take(bytes)?).map_err(|_| Error::Malformed)?;
        Ok(Item::Text(text.to_owned()))
    }

    fn extension(&mut self, bytes: usize) -> Result<Item, Error> {
        // One more for its type.
        self.take(bytes.checked_add(1).ok_or(Error::Malformed)?)?;
        Ok(Item::Extension)
    }

    fn list(&mut self, members: usize) -> Result<Item, Error> {
        self.nested(members, Self::item).map(Item::Array)
    }

    fn map(&mut self, members: usize) -> Result<Item, Error> {
        let member = |reader: &mut Self| match reader.item()? {
            Item::Text(name) => Ok((name, reader.item()?)),
            _ => Err(Error::Malformed),
        };
        self.nested(members, member).map(Item::Map)
    }

    /// Reads `members` members, without trust in their number.
    fn nested<T>(
        &mut self,
        members: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        if self.depth == limits::VALUE_DEPTH_MAX {
            return Err(Error::TooDeep);
        }
        self.depth += 1;
        let mut found = Vec::new();
        for _ in 0..members {
            found.push(read(self)?);
        }
        self.depth -= 1;
        Ok(found)
    }
}

fn object(item: Item, attributes: &'static [Attribute]) -> Result<Object, Error> {
    let Item::Map(members) = item else { return Err(Error::Malformed) };
    let mut object = Object::default();
    for (name, item) in members {
        // An attribute that the schema does not have is one of another version.
        let attribute = attributes.iter().find(|attribute| attribute.name == name);
        let attribute = attribute.ok_or(Error::Malformed)?;
        object.set(attribute.name, value(item, attribute.name, attribute.kind)?);
    }
    Ok(object)
}

fn value(item: Item, attribute: &'static str, kind: Type) -> Result<Value, Error> {
    let mismatch = Error::Type { attribute, expected: kind.words() };
    Ok(match (kind, item) {
        (_, Item::Extension) => Value::Unknown,
        (_, Item::Nil) => Value::Null,
        (Type::Bool, Item::Bool(is_true)) => Value::Bool(is_true),
        (Type::Number, Item::Integer(number)) => Value::Number(number),
        (Type::Number, Item::Fraction(number)) => Value::Number(integer(number).ok_or(mismatch)?),
        (Type::Number, Item::Text(number)) => Value::Number(number.parse().map_err(|_| mismatch)?),
        (Type::Text, Item::Text(text)) => Value::Text(text),
        (Type::Texts, Item::Array(members)) => Value::List(
            members.into_iter().map(|item| value(item, attribute, Type::Text)).collect::<Result<_, _>>()?,
        ),
        (Type::TextSet, Item::Array(members)) => Value::set(
            members.into_iter().map(|item| value(item, attribute, Type::Text)).collect::<Result<_, _>>()?,
        ),
        (Type::TextMap, Item::Map(members)) => {
            let member = |(name, item): (String, Item)| Ok((name, value(item, attribute, Type::Text)?));
            Value::Map(members.into_iter().map(member).collect::<Result<_, Error>>()?)
        }
        (Type::Objects(attributes), Item::Array(members)) => {
            let member = |item| value(item, attribute, Type::Object(attributes));
            Value::List(members.into_iter().map(member).collect::<Result<_, Error>>()?)
        }
        (Type::Object(attributes), item @ Item::Map(_)) => Value::Object(object(item, attributes)?),
        _ => return Err(mismatch),
    })
}

/// The integer that a fraction is, below the magnitude at which fractions leave integers out.
#[expect(clippy::cast_possible_truncation, reason = "within the range in which every integer is exact")]
fn integer(number: f64) -> Option<i64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && number.abs() <= EXACT_MAX).then_some(number as i64)
}

fn write(bytes: &mut Vec<u8>, value: &Value, kind: Type) {
    match value {
        // Extension type 0 with one byte.
        Value::Unknown => bytes.extend([0xd4, 0x00, 0x00]),
        Value::Null => bytes.push(NIL),
        Value::Bool(is_true) => bytes.push(if *is_true { 0xc3 } else { 0xc2 }),
        Value::Number(number) => write_number(bytes, *number),
        Value::Text(text) => write_text(bytes, text),
        Value::List(members) => {
            let inner =
                if let Type::Objects(attributes) = kind { Type::Object(attributes) } else { Type::Text };
            write_list(bytes, members.len(), members.iter(), inner);
        }
        Value::Set(members) => write_list(bytes, members.len(), members.iter(), Type::Text),
        Value::Map(members) => {
            write_length(bytes, 0xdf, members.len());
            for (name, member) in members {
                write_text(bytes, name);
                write(bytes, member, Type::Text);
            }
        }
        Value::Object(object) => match kind {
            Type::Object(attributes) => write_object(bytes, object, attributes),
            // No other type has objects.
            _ => bytes.push(NIL),
        },
    }
}

fn write_object(bytes: &mut Vec<u8>, object: &Object, attributes: &[Attribute]) {
    write_length(bytes, 0xdf, attributes.len());
    for attribute in attributes {
        write_text(bytes, attribute.name);
        write(bytes, object.value(attribute.name), attribute.kind);
    }
}

fn write_list<'v>(bytes: &mut Vec<u8>, members: usize, values: impl Iterator<Item = &'v Value>, kind: Type) {
    write_length(bytes, 0xdd, members);
    values.for_each(|value| write(bytes, value, kind));
}

fn write_text(bytes: &mut Vec<u8>, text: &str) {
    write_length(bytes, 0xdb, text.len());
    bytes.extend(text.as_bytes());
}

fn write_number(bytes: &mut Vec<u8>, number: i64) {
    bytes.push(0xd3);
    bytes.extend(number.to_be_bytes());
}

/// A kind and a length of four bytes. No value of a message is longer.
fn write_length(bytes: &mut Vec<u8>, kind: u8, length: usize) {
    bytes.push(kind);
    bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTRIBUTES: &[Attribute] = &[
        Attribute::optional("text", Type::Text, ""),
        Attribute::optional("number", Type::Number, ""),
        Attribute::optional("set", Type::TextSet, ""),
        Attribute::optional("list", Type::Texts, ""),
        Attribute::optional("map", Type::TextMap, ""),
        Attribute::optional("flag", Type::Bool, ""),
        Attribute::optional("inner", Type::Object(INNER), ""),
    ];
    const INNER: &[Attribute] = &[Attribute::optional("text", Type::Text, "")];

    /// An object with one member, whose value is these bytes.
    fn one(name: &str, value: &[u8]) -> Result<Object, Error> {
        let mut bytes = vec![0x81];
        write_text(&mut bytes, name);
        bytes.extend(value);
        decode(&bytes, ATTRIBUTES).map(Option::unwrap_or_default)
    }

    #[test]
    fn unknown_members_of_a_set_stay_apart() {
        let unknown = [0xd4, 0x00, 0x00];
        let set = [&[0x94][..], &unknown, &[0xa1, b'a'], &[0xa1, b'a'], &unknown].concat();
        let object = one("set", &set).expect("a set");
        let Value::Set(members) = object.value("set") else { panic!("{object:?}") };
        assert_eq!(members.len(), 3, "{members:?}");
        let bytes = encode(Some(&object), ATTRIBUTES);
        let decoded = decode(&bytes, ATTRIBUTES).expect("decoded").expect("an object");
        assert_eq!(decoded.value("set"), object.value("set"));
    }

    #[test]
    fn every_kind_of_value_survives_the_round_trip() {
        let inner = Object::default().with("text", Value::Unknown);
        let object = Object::default()
            .with("text", Value::text("é"))
            .with("number", Value::Number(-3))
            .with("set", Value::texts(["b", "a"]))
            .with("list", Value::List(vec![Value::text("b"), Value::Unknown]))
            .with("map", Value::Map([("k".to_owned(), Value::text("v"))].into()))
            .with("flag", Value::Bool(true))
            .with("inner", Value::Object(inner));
        let bytes = encode(Some(&object), ATTRIBUTES);
        assert_eq!(decode(&bytes, ATTRIBUTES), Ok(Some(object)));
        assert_eq!(decode(&encode(None, ATTRIBUTES), ATTRIBUTES), Ok(None));
    }

    /// Bytes as Terraform writes them: short forms, and unknown values with what is known of them.
    #[test]
    fn compact_forms_of_terraform_are_read() {
        let value = |name, bytes: &[u8]| one(name, bytes).expect("a value").value(name).clone();
        assert_eq!(value("text", b"\xa3abc"), Value::text("abc"));
        assert_eq!(value("text", &[0xd4, 0x00, 0x00]), Value::Unknown);
        assert_eq!(value("text", &[0xc7, 0x03, 0x0c, 0x81, 0x01, 0xc2]), Value::Unknown);
        assert_eq!(value("number", &[0x07]), Value::Number(7));
        assert_eq!(value("number", &[0xff]), Value::Number(-1));
        assert_eq!(value("number", &[0xcd, 0x01, 0x00]), Value::Number(256));
        assert_eq!(value("number", &[0xcb, 0x40, 0x08, 0, 0, 0, 0, 0, 0]), Value::Number(3));
        assert_eq!(value("set", b"\x92\xa1b\xa1a"), Value::texts(["a", "b"]));
        assert_eq!(value("flag", &[0xc2]), Value::Bool(false));
    }

    #[test]
    fn value_of_another_type_is_refused() {
        for (name, bytes) in [
            ("text", &[0x07][..]),
            ("number", &[0xcb, 0x40, 0x0c, 0, 0, 0, 0, 0, 0]),
            ("number", b"\xa3abc"),
            ("set", &[0x80]),
            ("set", &[0x91, 0x07]),
            ("flag", &[0x01]),
            ("inner", &[0x90]),
        ] {
            assert!(matches!(one(name, bytes), Err(Error::Type { .. })), "{name} {bytes:?}");
        }
    }

    #[test]
    fn malformed_bytes_are_refused() {
        for bytes in [
            &[][..],
            &[0x81],
            &[0xc1],
            &[0xc0, 0xc0],
            &[0x81, 0xa1],
            &[0xdd, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0xff, 0xff, 0xff, 0xff, 0x61],
            &[0x81, 0xa4, b't', b'e', b'x', b't', 0xa1, 0xff],
            &[0x81, 0xa5, b'o', b't', b'h', b'e', b'r', 0xc0],
            &[0x91, 0xc0],
        ] {
            assert_eq!(decode(bytes, ATTRIBUTES), Err(Error::Malformed), "{bytes:?}");
        }
        assert_eq!(decode(&[0x91; 100], ATTRIBUTES), Err(Error::TooDeep));
    }
}
