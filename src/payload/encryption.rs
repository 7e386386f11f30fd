//! Laravel's encrypter: encryption and signatures with `APP_KEY`.
//!
//! Pure, except that each text gets an initialization vector from the system's
//! random number generator. docs/protocol/encryption.md describes the format.
//! Surprising details:
//!
//! * The same bytes are the key of the cipher and of the MAC.
//! * The MAC is computed over the base64 texts, not over the decoded bytes.
//! * A job's command is serialized twice: the encrypter serializes the text it
//!   is given, and that text is a serialized object.
//! * Only the current key encrypts and signs; previous ones decrypt.
//!
//! Memory use is limited to a few multiples of the text's size.

use std::fmt;

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{
    BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt as _, BlockModeEncrypt as _, KeyInit,
    KeyIvInit as _,
};
use aes::{Aes128, Aes256};
use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::Version;
use crate::php::Value;
use crate::shown::hex;

/// Why there is no encrypter; the messages are Laravel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// `app.key` is empty.
    #[error("No application encryption key has been specified.")]
    Missing,
    /// The version does not know the cipher, or a key does not have the length that the cipher needs.
    #[error("{}", supported_ciphers(*.0))]
    Unsupported(Version),
}

/// Why a text cannot be decrypted; the messages are Laravel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncryptionError {
    /// The text is not the output of an encrypter.
    #[error("The payload is invalid.")]
    Payload,
    /// The MAC fits none of the keys: the text was encrypted with another key, or changed since.
    #[error("The MAC is invalid.")]
    Mac,
    /// The cipher refuses the text: another key or cipher, or changed since.
    #[error("Could not decrypt the data.")]
    Data,
    /// The text has the tag of a GCM cipher, but the app's cipher is not one.
    #[error("Unable to use tag because the cipher algorithm does not support AEAD.")]
    Tag,
    /// The decrypted text is not a serialized string, as a command would be.
    #[error("the decrypted text holds no command")]
    Command,
}

fn supported_ciphers(version: Version) -> &'static str {
    match (version.major, version.minor) {
        (8, 54 | 55) => {
            "The only supported ciphers are AES-128-CBC, AES-256-CBC, AES-128-GCM, and AES-256-GCM with the correct key lengths."
        }
        (8, 56 | 57) => {
            "Unsupported cipher or incorrect key length. Supported ciphers are: AES-128-CBC, AES-256-CBC, AES-128-GCM, AES-256-GCM."
        }
        _ if version.is_at_least(8, 58) => {
            "Unsupported cipher or incorrect key length. Supported ciphers are: aes-128-cbc, aes-256-cbc, aes-128-gcm, aes-256-gcm."
        }
        _ => {
            "The only supported ciphers are AES-128-CBC and AES-256-CBC with the correct key lengths."
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cipher {
    Aes128Cbc,
    Aes256Cbc,
    Aes128Gcm,
    Aes256Gcm,
}

/// Bytes of an AES block, and of a GCM tag.
const BLOCK: usize = 16;

impl Cipher {
    const ALL: [Self; 4] = [
        Self::Aes128Cbc,
        Self::Aes256Cbc,
        Self::Aes128Gcm,
        Self::Aes256Gcm,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Aes128Cbc => "AES-128-CBC",
            Self::Aes256Cbc => "AES-256-CBC",
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
        }
    }

    fn of(name: &str, version: Version) -> Option<Self> {
        let any_case = version.is_at_least(8, 58);
        let is_it = |known: &str| known == name || (any_case && known.eq_ignore_ascii_case(name));
        let cipher = Self::ALL.into_iter().find(|known| is_it(known.name()))?;
        (version.is_at_least(8, 54) || !cipher.is_aead()).then_some(cipher)
    }

    fn is_aead(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes256Gcm)
    }

    fn key_len(self) -> usize {
        match self {
            Self::Aes128Cbc | Self::Aes128Gcm => 16,
            Self::Aes256Cbc | Self::Aes256Gcm => 32,
        }
    }

    fn iv_len(self) -> usize {
        if self.is_aead() { 12 } else { BLOCK }
    }

    /// Returns ciphertext and tag; the tag is empty if the cipher makes none.
    fn seal(self, key: &Key, iv: &[u8], plain: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let key = &key.0[..];
        match self {
            Self::Aes128Cbc => (seal_cbc::<Aes128>(key, iv, plain), Vec::new()),
            Self::Aes256Cbc => (seal_cbc::<Aes256>(key, iv, plain), Vec::new()),
            Self::Aes128Gcm => seal_gcm::<Aes128Gcm>(key, iv, plain),
            Self::Aes256Gcm => seal_gcm::<Aes256Gcm>(key, iv, plain),
        }
    }

    fn open(self, key: &Key, iv: &[u8], sealed: &[u8], tag: &[u8]) -> Option<Vec<u8>> {
        let key = &key.0[..];
        match self {
            Self::Aes128Cbc => open_cbc::<Aes128>(key, iv, sealed),
            Self::Aes256Cbc => open_cbc::<Aes256>(key, iv, sealed),
            Self::Aes128Gcm => open_gcm::<Aes128Gcm>(key, iv, sealed, tag),
            Self::Aes256Gcm => open_gcm::<Aes256Gcm>(key, iv, sealed, tag),
        }
    }
}

/// Message of panics on wrong lengths, which cannot occur.
const CHECKED: &str = "lengths of key and vector are checked";

fn seal_cbc<C>(key: &[u8], iv: &[u8], plain: &[u8]) -> Vec<u8>
where
    C: BlockCipherEncrypt + KeyInit,
{
    let cipher = cbc::Encryptor::<C>::new_from_slices(key, iv).expect(CHECKED);
    cipher.encrypt_padded_vec::<Pkcs7>(plain)
}

fn open_cbc<C>(key: &[u8], iv: &[u8], sealed: &[u8]) -> Option<Vec<u8>>
where
    C: BlockCipherDecrypt + KeyInit,
{
    let cipher = cbc::Decryptor::<C>::new_from_slices(key, iv).expect(CHECKED);
    cipher.decrypt_padded_vec::<Pkcs7>(sealed).ok()
}

fn seal_gcm<C: AeadInOut + KeyInit>(key: &[u8], iv: &[u8], plain: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let cipher = C::new_from_slice(key).expect(CHECKED);
    let mut text = plain.to_vec();
    let tag = cipher
        .encrypt_inout_detached(iv.try_into().expect(CHECKED), b"", (&mut *text).into())
        .expect("no text in memory is as long as the limit of GCM, 64 GiB");
    (text, tag.to_vec())
}

fn open_gcm<C: AeadInOut + KeyInit>(
    key: &[u8],
    iv: &[u8],
    sealed: &[u8],
    tag: &[u8],
) -> Option<Vec<u8>> {
    let cipher = C::new_from_slice(key).expect(CHECKED);
    let mut text = sealed.to_vec();
    cipher
        .decrypt_inout_detached(
            iv.try_into().ok()?,
            b"",
            (&mut *text).into(),
            tag.try_into().ok()?,
        )
        .ok()?;
    Some(text)
}

/// A key's bytes; wiped when dropped, and never printed.
struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// Reads `app.key`: base64 after the prefix `base64:`, otherwise the bytes themselves.
    ///
    /// # Source
    ///
    /// `Illuminate\Encryption\EncryptionServiceProvider::parseKey`.
    fn parse(text: &str) -> Result<Self, KeyError> {
        // PHP's `empty()` is true for these.
        if matches!(text, "" | "0") {
            return Err(KeyError::Missing);
        }
        let bytes = match text.strip_prefix("base64:") {
            Some(encoded) => lenient_base64(encoded.as_bytes()),
            None => text.as_bytes().to_vec(),
        };
        Ok(Self(Zeroizing::new(bytes)))
    }

    fn hmac(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length")
    }

    /// The MAC as 64 lowercase hex digits.
    fn mac(&self, iv: &str, value: &str) -> String {
        let mut mac = self.hmac();
        mac.update(iv.as_bytes());
        mac.update(value.as_bytes());
        hex(&mac.finalize().into_bytes())
    }
}

/// The keys of an app, used by the rules of its version of Laravel.
pub struct Encrypter {
    version: Version,
    cipher: Cipher,
    key: Key,
    previous: Vec<Key>,
}

impl fmt::Debug for Encrypter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypter")
            .field("version", &self.version)
            .field("cipher", &self.cipher)
            .field("previous_keys", &self.previous.len())
            .finish_non_exhaustive()
    }
}

impl Encrypter {
    /// An encrypter for `app.key` and `app.cipher`.
    ///
    /// # Errors
    ///
    /// There is no key, the version does not know the cipher, or the key does not fit it.
    ///
    /// # Source
    ///
    /// `Illuminate\Encryption\Encrypter`.
    pub fn new(version: Version, key: &str, cipher: &str) -> Result<Self, KeyError> {
        let key = Key::parse(key)?;
        let cipher = Cipher::of(cipher, version)
            .filter(|cipher| cipher.key_len() == key.0.len())
            .ok_or(KeyError::Unsupported(version))?;
        Ok(Self {
            version,
            cipher,
            key,
            previous: Vec::new(),
        })
    }

    /// Adds the keys of `app.previous_keys`, which are only used to decrypt.
    ///
    /// Laravel supports them since 11.0; earlier versions cannot read texts of an old key.
    ///
    /// # Errors
    ///
    /// A key is empty or does not fit the cipher.
    pub fn with_previous_keys<T: AsRef<str>>(
        mut self,
        keys: impl IntoIterator<Item = T>,
    ) -> Result<Self, KeyError> {
        for key in keys {
            let key = Key::parse(key.as_ref())?;
            if key.0.len() != self.cipher.key_len() {
                return Err(KeyError::Unsupported(self.version));
            }
            self.previous.push(key);
        }
        Ok(self)
    }

    /// The version of Laravel whose format is written.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Name of the cipher.
    pub fn cipher(&self) -> &'static str {
        self.cipher.name()
    }

    /// The number of previous keys.
    pub fn previous_keys(&self) -> usize {
        self.previous.len()
    }

    /// Encrypts with the current key, as `encryptString` does.
    ///
    /// # Panics
    ///
    /// If the system's random number generator fails.
    pub fn encrypt(&self, plain: &[u8]) -> String {
        let mut iv = vec![0; self.cipher.iv_len()];
        getrandom::fill(&mut iv).expect("the system has random numbers");
        self.encrypt_with_iv(plain, &iv)
    }

    fn encrypt_with_iv(&self, plain: &[u8], iv: &[u8]) -> String {
        let (value, tag) = self.cipher.seal(&self.key, iv, plain);
        let (iv, value) = (STANDARD.encode(iv), STANDARD.encode(value));
        let mac = if self.cipher.is_aead() {
            String::new()
        } else {
            self.key.mac(&iv, &value)
        };
        let tag = if self.version.is_at_least(8, 54) {
            format!(r#","tag":"{}""#, STANDARD.encode(tag))
        } else {
            String::new()
        };
        // The values are base64 and hex, which need no other JSON escapes.
        let mut json = format!(r#"{{"iv":"{iv}","value":"{value}","mac":"{mac}"{tag}}}"#);
        let version = self.version;
        if (version.major, version.minor, version.patch) < (7, 0, 8) {
            json = json.replace('/', "\\/");
        }
        STANDARD.encode(json)
    }

    /// Decrypts the output of [`encrypt`](Self::encrypt) or of any version of Laravel with one of the keys.
    ///
    /// # Errors
    ///
    /// The text is not the output of an encrypter, was made with another key or cipher, or was changed.
    pub fn decrypt(&self, text: &[u8]) -> Result<Vec<u8>, EncryptionError> {
        let Sealed {
            iv,
            value,
            mac,
            tag,
        } = Sealed::parse(text)?;
        let iv_bytes = strict_base64(&iv)
            .filter(|bytes| bytes.len() == self.cipher.iv_len())
            .ok_or(EncryptionError::Payload)?;
        // PHP's `empty()` is true for these.
        let tag = tag.filter(|tag| !matches!(&**tag, "" | "0"));
        let tag = tag.map(|tag| lenient_base64(tag.as_bytes()));
        let keys = || std::iter::once(&self.key).chain(&self.previous);
        if !self.cipher.is_aead() {
            if tag.is_some() {
                return Err(EncryptionError::Tag);
            }
            let made_it = |key: &&Key| key.mac(&iv, &value).as_bytes().ct_eq(mac.as_bytes()).into();
            let key = keys().find(made_it).ok_or(EncryptionError::Mac)?;
            let sealed = lenient_base64(value.as_bytes());
            let plain = self.cipher.open(key, &iv_bytes, &sealed, &[]);
            return plain.ok_or(EncryptionError::Data);
        }
        let tag = tag.filter(|tag| tag.len() == BLOCK);
        let tag = tag.ok_or(EncryptionError::Data)?;
        let sealed = lenient_base64(value.as_bytes());
        keys()
            .find_map(|key| self.cipher.open(key, &iv_bytes, &sealed, &tag))
            .ok_or(EncryptionError::Data)
    }

    /// Encrypts a serialized object for the `command` of a payload.
    ///
    /// # Panics
    ///
    /// If the system's random number generator fails.
    pub fn encrypt_command(&self, command: &[u8]) -> String {
        self.encrypt(&Value::String(command.to_vec()).to_bytes())
    }

    /// Decrypts the `command` of a payload into the serialized object.
    ///
    /// # Errors
    ///
    /// See [`decrypt`](Self::decrypt); also if the content is not a serialized string.
    pub fn decrypt_command(&self, command: &[u8]) -> Result<Vec<u8>, EncryptionError> {
        let plain = self.decrypt(command)?;
        // As in PHP before 8.3, bytes after the string are ignored.
        match Value::from_prefix(&plain) {
            Ok((Value::String(command), _)) => Ok(command),
            _ => Err(EncryptionError::Command),
        }
    }

    /// Signs with the current key, as Laravel signs closures: the base64 of an HMAC-SHA256.
    ///
    /// # Source
    ///
    /// `Laravel\SerializableClosure\Signers\Hmac::sign`.
    pub fn sign(&self, text: &[u8]) -> String {
        let mut mac = self.key.hmac();
        mac.update(text);
        STANDARD.encode(mac.finalize().into_bytes())
    }
}

/// The fields of an encrypter's JSON.
struct Sealed {
    iv: String,
    value: String,
    mac: String,
    tag: Option<String>,
}

impl Sealed {
    fn parse(text: &[u8]) -> Result<Self, EncryptionError> {
        use serde_json::Value as Json;

        const INVALID: EncryptionError = EncryptionError::Payload;
        let json = lenient_base64(text);
        // The last of duplicate fields counts, as in PHP.
        let mut fields: serde_json::Map<String, Json> =
            serde_json::from_slice(&json).map_err(|_| INVALID)?;
        let mut field = |name| match fields.remove(name) {
            Some(Json::String(text)) => Ok(Some(text)),
            Some(Json::Null) | None => Ok(None),
            Some(_) => Err(INVALID),
        };
        Ok(Self {
            iv: field("iv")?.ok_or(INVALID)?,
            value: field("value")?.ok_or(INVALID)?,
            mac: field("mac")?.ok_or(INVALID)?,
            tag: field("tag")?,
        })
    }
}

/// Ignores unused trailing bits, as PHP does.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// PHP's `base64_decode`: ignores characters outside of the alphabet.
fn lenient_base64(text: &[u8]) -> Vec<u8> {
    if let Ok(bytes) = LENIENT.decode(text) {
        return bytes;
    }
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut digits: Vec<u8> = text.iter().copied().filter(is_digit).collect();
    if digits.len() % 4 == 1 {
        // Six bits do not make a byte.
        digits.pop();
    }
    LENIENT
        .decode(digits)
        .expect("these are digits, and enough for whole bytes")
}

/// PHP's strict `base64_decode`: ignores only white space.
fn strict_base64(text: &str) -> Option<Vec<u8>> {
    let is_kept = |c: &char| !matches!(c, ' ' | '\t' | '\n' | '\r');
    let text: String = text.chars().filter(is_kept).collect();
    LENIENT.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &[u8] = br#"s:19:"O:8:"stdClass":0:{}";"#;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn of(cipher: &str) -> Encrypter {
        let len = if cipher.contains("128") { 16 } else { 32 };
        Encrypter::new(Version::NEWEST, &"k".repeat(len), cipher).unwrap()
    }

    #[test]
    fn texts_are_those_that_laravel_13_accepted() {
        let cbc = "eyJpdiI6IkFRRUJBUUVCQVFFQkFRRUJBUUVCQVE9PSIsInZhbHVlIjoiSFhNSG1TcWhqRGVBU3FHZC82NENITk84T0pZK2pxbm9YaFNjNTVPMEVZWT0iLCJtYWMiOiJlY2NiYzQ4YzgzMjkyODdjYmFlZDczOTExMWU0ZDQwYTE1ZTllZTA3ZDJkMmQ4ZjcxNTk3MGFkZTI0ODRlNWFhIiwidGFnIjoiIn0=";
        let gcm = "eyJpdiI6IkFRRUJBUUVCQVFFQkFRRUIiLCJ2YWx1ZSI6IkpOWEprMC9mMzlaOUFCSU1Bdk15YXgxczc4eWZkM24yVlAyaSIsIm1hYyI6IiIsInRhZyI6IlpqeHlwOTBwVXlMVVpLMjJHZ0w2WWc9PSJ9";
        for (cipher, iv, expected) in [
            ("AES-256-CBC", &[1; 16][..], cbc),
            ("aes-256-gcm", &[1; 12], gcm),
        ] {
            let encrypter = of(cipher);
            assert_eq!(encrypter.encrypt_with_iv(PLAIN, iv), expected);
            assert_eq!(encrypter.decrypt(expected.as_bytes()).unwrap(), PLAIN);
            let command = encrypter.decrypt_command(expected.as_bytes()).unwrap();
            assert_eq!(command, br#"O:8:"stdClass":0:{}"#);
        }
        let written = r#"{"iv":"tQgda1SLqDU6cKNZp6tPDQ==","value":"xZ3mNCJJ2ODGzIEAlKjzVhmjHE+jWAykdedBxKJQboY+kFOxncIlq0V+1eGlS7Ua","mac":"14d13ccf25a7bd55b4a5e557dda96e44d2124345a0b2f13d2c3fc04990db7e0e","tag":""}"#;
        let command = of("AES-256-CBC").decrypt_command(STANDARD.encode(written).as_bytes());
        assert_eq!(command.unwrap(), br#"O:8:"stdClass":1:{s:1:"a";i:1;}"#);
    }

    #[test]
    fn each_version_writes_its_own_json_and_all_are_read() {
        let rows = [
            (
                "13.0",
                r#""value":"HXMHmSqhjDeASqGd/64CH"#,
                r#"5aa","tag":""}"#,
            ),
            (
                "8.54",
                r#""value":"HXMHmSqhjDeASqGd/64CH"#,
                r#"5aa","tag":""}"#,
            ),
            ("8.53", r#""value":"HXMHmSqhjDeASqGd/64CH"#, r#"5aa"}"#),
            ("7.0.8", r#""value":"HXMHmSqhjDeASqGd/64CH"#, r#"5aa"}"#),
            ("7.0.7", r#""value":"HXMHmSqhjDeASqGd\/64CH"#, r#"5aa"}"#),
            ("5.5", r#""value":"HXMHmSqhjDeASqGd\/64CH"#, r#"5aa"}"#),
        ];
        for (number, value, end) in rows {
            let key = "k".repeat(32);
            let encrypter = Encrypter::new(version(number), &key, "AES-256-CBC").unwrap();
            let text = encrypter.encrypt_with_iv(PLAIN, &[1; 16]);
            let json = String::from_utf8(STANDARD.decode(&text).unwrap()).unwrap();
            assert!(
                json.contains(value) && json.ends_with(end),
                "{number}: {json}"
            );
            let decrypted = of("AES-256-CBC").decrypt(text.as_bytes());
            assert_eq!(decrypted.unwrap(), PLAIN, "{number}");
        }
    }

    #[test]
    fn keys_and_ciphers_are_those_of_the_version() {
        let (short, long) = ("k".repeat(16), "k".repeat(32));
        let encoded = format!("base64:{}", STANDARD.encode(&long));
        let bare = STANDARD.encode(&long);
        #[rustfmt::skip]
        let rows = [
            ("13.0", &*long, "AES-256-CBC", "ok"),
            ("13.0", &encoded, "aes-256-gcm", "ok"),
            ("8.58", &short, "Aes-128-Gcm", "ok"),
            ("8.54", &short, "AES-128-GCM", "ok"),
            ("5.5", &short, "AES-128-CBC", "ok"),
            ("13.0", "", "AES-256-CBC", "No application encryption key has been specified."),
            ("13.0", &bare, "AES-256-CBC", "Unsupported cipher or incorrect key length. Supported ciphers are: aes-128-cbc, aes-256-cbc, aes-128-gcm, aes-256-gcm."),
            ("8.58", &short, "AES-256-CBC", "Unsupported cipher or incorrect key length. Supported ciphers are: aes-128-cbc, aes-256-cbc, aes-128-gcm, aes-256-gcm."),
            ("8.57", &long, "aes-256-cbc", "Unsupported cipher or incorrect key length. Supported ciphers are: AES-128-CBC, AES-256-CBC, AES-128-GCM, AES-256-GCM."),
            ("8.55", &long, "aes-256-cbc", "The only supported ciphers are AES-128-CBC, AES-256-CBC, AES-128-GCM, and AES-256-GCM with the correct key lengths."),
            ("8.53", &long, "AES-256-GCM", "The only supported ciphers are AES-128-CBC and AES-256-CBC with the correct key lengths."),
            ("5.5", &short, "AES-256-CBC", "The only supported ciphers are AES-128-CBC and AES-256-CBC with the correct key lengths."),
        ];
        for (number, key, cipher, expected) in rows {
            let made = Encrypter::new(version(number), key, cipher);
            let found = made.map_or_else(|error| error.to_string(), |_| "ok".to_owned());
            assert_eq!(found, expected, "{number} {cipher}");
        }
        let wrong = of("AES-256-CBC").with_previous_keys([&short]);
        assert!(matches!(wrong, Err(KeyError::Unsupported(_))));
    }

    #[test]
    fn no_key_is_shown() {
        let encrypter = of("AES-256-CBC").with_previous_keys(["p".repeat(32)]);
        let shown = format!("{:?}", encrypter.unwrap());
        assert!(shown.contains("previous_keys: 1"), "{shown}");
        assert!(!shown.contains("kk") && !shown.contains("107"), "{shown}");
        assert!(!shown.contains("pp") && !shown.contains("112"), "{shown}");
    }

    #[test]
    fn previous_keys_decrypt_and_the_current_one_encrypts() {
        for cipher in ["AES-256-CBC", "aes-256-gcm"] {
            let old = of(cipher).encrypt(PLAIN);
            let with = |previous: &[String]| {
                let new = Encrypter::new(Version::NEWEST, &"n".repeat(32), cipher).unwrap();
                new.with_previous_keys(previous).unwrap()
            };
            let refused = with(&[]).decrypt(old.as_bytes()).unwrap_err();
            let of_cipher = match cipher {
                "AES-256-CBC" => EncryptionError::Mac,
                _ => EncryptionError::Data,
            };
            assert_eq!(refused, of_cipher);
            let rotated = with(&["x".repeat(32), "k".repeat(32)]);
            assert_eq!(rotated.decrypt(old.as_bytes()).unwrap(), PLAIN);
            let new = rotated.encrypt(PLAIN);
            assert_eq!(with(&[]).decrypt(new.as_bytes()).unwrap(), PLAIN);
            assert_eq!(of(cipher).decrypt(new.as_bytes()).unwrap_err(), of_cipher);
        }
    }

    #[test]
    fn what_was_changed_is_refused_with_laravels_words() {
        use EncryptionError::{Data, Mac, Payload, Tag};
        type Change<'a> = Box<dyn Fn(&mut serde_json::Value) + 'a>;
        let encoded = |json: String| STANDARD.encode(json).into_bytes();
        let parts = |encrypter: &Encrypter| {
            let json = STANDARD.decode(encrypter.encrypt(PLAIN)).unwrap();
            serde_json::from_slice::<serde_json::Value>(&json).unwrap()
        };
        let cbc = of("AES-256-CBC");
        let gcm = of("AES-256-GCM");
        let other = Encrypter::new(Version::NEWEST, &"o".repeat(32), "AES-256-CBC").unwrap();
        let flipped = |text: &str| {
            let mut bytes = STANDARD.decode(text).unwrap();
            bytes[0] ^= 1;
            serde_json::Value::from(STANDARD.encode(bytes))
        };
        let set = |field: &'static str, value: serde_json::Value| -> Change<'_> {
            Box::new(move |json| json[field] = value.clone())
        };
        let flip = |field: &'static str| -> Change<'_> {
            Box::new(move |json| json[field] = flipped(json[field].as_str().unwrap()))
        };
        let upper: Change<'_> = Box::new(|json| {
            json["mac"] = json["mac"].as_str().unwrap().to_ascii_uppercase().into();
        });
        #[rustfmt::skip]
        let rows: Vec<(&str, &Encrypter, Change<'_>, EncryptionError)> = vec![
            ("value", &cbc, flip("value"), Mac),
            ("iv", &cbc, flip("iv"), Mac),
            ("no mac", &cbc, set("mac", "".into()), Mac),
            ("null mac", &cbc, set("mac", serde_json::Value::Null), Payload),
            ("number", &cbc, set("value", 5.into()), Payload),
            ("iv length", &cbc, set("iv", "AQEB".into()), Payload),
            ("iv text", &cbc, set("iv", "tQgda1SLqDU6cKNZp6tPD!==".into()), Payload),
            ("tag", &cbc, set("tag", "Zjxyp90pUyLUZK22GgL6Yg==".into()), Tag),
            ("list as tag", &cbc, set("tag", serde_json::json!([])), Payload),
            ("upper case", &cbc, upper, Mac),
            ("gcm value", &gcm, flip("value"), Data),
            ("gcm iv", &gcm, flip("iv"), Data),
            ("gcm tag", &gcm, flip("tag"), Data),
            ("gcm no tag", &gcm, set("tag", "".into()), Data),
            ("gcm short tag", &gcm, set("tag", "Zjxy".into()), Data),
            ("cbc as gcm", &gcm, set("iv", "AQEBAQEBAQEBAQEBAQEBAQ==".into()), Payload),
        ];
        for (name, encrypter, change, expected) in rows {
            let mut json = parts(encrypter);
            change(&mut json);
            let found = encrypter.decrypt(&encoded(json.to_string()));
            assert_eq!(found, Err(expected), "{name}");
        }
        assert_eq!(other.decrypt(cbc.encrypt(PLAIN).as_bytes()), Err(Mac));
        for text in ["", "x", "e30=", "W10=", "bnVsbA==", "O:1:\"A\":0:{}"] {
            assert_eq!(cbc.decrypt(text.as_bytes()), Err(Payload), "{text}");
        }
        // A valid iv, value and mac, but in a list.
        let json = parts(&cbc);
        let list = serde_json::json!([json["iv"], json["value"], json["mac"]]);
        assert_eq!(cbc.decrypt(&encoded(list.to_string())), Err(Payload));
        let deep = encoded("[".repeat(100_000));
        assert_eq!(cbc.decrypt(&deep), Err(Payload));
        let no_text = cbc.encrypt(b"i:5;");
        assert_eq!(
            cbc.decrypt_command(no_text.as_bytes()),
            Err(EncryptionError::Command)
        );
    }

    #[test]
    fn base64_is_read_as_php_reads_it() {
        let rows: [(&str, &[u8]); 7] = [
            ("YWJj", b"abc"),
            ("YWI=", b"ab"),
            ("YWI", b"ab"),
            ("YW\nJj ", b"abc"),
            ("Y=WJj-_", b"abc"),
            ("YWJjZ", b"abc"),
            ("YWJ=", b"ab"),
        ];
        for (text, expected) in rows {
            assert_eq!(lenient_base64(text.as_bytes()), expected, "{text}");
        }
    }

    /// As many bytes as one of these lengths, in base64.
    fn encoded(lengths: &'static [usize]) -> impl Strategy<Value = String> {
        let bytes = prop::sample::select(lengths)
            .prop_flat_map(|length| prop::collection::vec(any::<u8>(), length));
        bytes.prop_map(|bytes| STANDARD.encode(bytes))
    }

    proptest! {
        #[test]
        fn whatever_is_encrypted_comes_back(plain: Vec<u8>, which in 0..4_usize) {
            let encrypter = of(Cipher::ALL[which].name());
            let text = encrypter.encrypt(&plain);
            prop_assert_eq!(encrypter.decrypt(text.as_bytes()).unwrap(), &plain[..]);
            let text = encrypter.encrypt_command(&plain);
            prop_assert_eq!(encrypter.decrypt_command(text.as_bytes()).unwrap(), plain);
        }

        #[test]
        fn no_text_makes_it_panic(
            text: Vec<u8>,
            iv in prop_oneof!["[A-Za-z0-9+/=]{0,24}", encoded(&[12, BLOCK])],
            value in prop_oneof![any::<String>(), encoded(&[BLOCK, 2 * BLOCK])],
            tag in proptest::option::of(prop_oneof!["[A-Za-z0-9+/=]{0,24}", encoded(&[BLOCK])]),
        ) {
            for cipher in Cipher::ALL {
                let encrypter = of(cipher.name());
                prop_assert!(encrypter.decrypt(&text).is_err());
                // With a valid MAC, and often with lengths that fit, so that the cipher is reached.
                let mac = encrypter.key.mac(&iv, &value);
                let json = serde_json::json!({"iv": iv, "value": value, "mac": mac, "tag": tag});
                let _ = encrypter.decrypt_command(STANDARD.encode(json.to_string()).as_bytes());
            }
        }
    }
}
