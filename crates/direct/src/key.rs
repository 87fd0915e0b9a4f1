//! Keys, and their verification by digest (RFC 7250: raw public keys in place of certificates).

use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

/// The SHA-256 of a public key, in the form of a SubjectPublicKeyInfo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    fn of(public_key: &[u8]) -> Digest {
        let digest = ring::digest::digest(&ring::digest::SHA256, public_key);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Digest(bytes)
    }
}

/// A fresh key, which is only in memory.
pub struct Identity {
    provider: Arc<CryptoProvider>,
    key: Arc<CertifiedKey>,
    digest: Digest,
}

impl Identity {
    /// Makes a key.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn fresh() -> Result<Identity, crate::Error> {
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| crate::Error::Key)?;
        let provider = Arc::new(provider());
        let private = PrivatePkcs8KeyDer::from(document.as_ref().to_vec()).into();
        let key = provider.key_provider.load_private_key(private)?;
        let public = key.public_key().ok_or(crate::Error::Key)?.to_vec();
        let digest = Digest::of(&public);
        let key = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key));
        Ok(Identity { provider, key, digest })
    }

    /// What the other side has to know.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The public key of this one, with the private key of another.
    #[cfg(test)]
    pub(crate) fn with_private_key_of(&self, other: &Identity) -> Identity {
        let (public, private) = (self.key.cert.clone(), other.key.key.clone());
        let key = Arc::new(CertifiedKey::new(public, private));
        Identity { provider: self.provider.clone(), key, digest: self.digest }
    }

    pub(crate) fn client(&self, peer: Digest) -> Result<Arc<ClientConfig>, Error> {
        let resolver = AlwaysResolvesClientRawPublicKeys::new(self.key.clone());
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(self.pinned(peer))
            .with_client_cert_resolver(Arc::new(resolver));
        // It would be sent in clear.
        config.enable_sni = false;
        Ok(Arc::new(config))
    }

    pub(crate) fn server(&self, peer: Digest) -> Result<Arc<ServerConfig>, Error> {
        let resolver = AlwaysResolvesServerRawPublicKeys::new(self.key.clone());
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(self.pinned(peer))
            .with_cert_resolver(Arc::new(resolver));
        // Each connection proves both keys: there is nothing to resume.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn pinned(&self, peer: Digest) -> Arc<Pinned> {
        Arc::new(Pinned { peer, provider: self.provider.clone() })
    }
}

/// rustls' default, with the fastest cipher of this processor first. The client's order decides.
fn provider() -> CryptoProvider {
    use cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let (aes, chacha) = (TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256);
    let [first, second] = if base::processor::has_aes() { [aes, chacha] } else { [chacha, aes] };
    CryptoProvider {
        cipher_suites: vec![first, second, TLS13_AES_256_GCM_SHA384],
        ..default_provider()
    }
}

/// Accepts one public key.
#[derive(Debug)]
struct Pinned {
    peer: Digest,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn check(&self, key: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        if others.is_empty() && Digest::of(key) == self.peer {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }
}

/// The methods that both verifiers have.
macro_rules! common_methods {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("TLS 1.2 is not used".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            let key = SubjectPublicKeyInfoDer::from(key.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(key, others).map(|()| ServerCertVerified::assertion())
    }

    common_methods!();
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(key, others).map(|()| ClientCertVerified::assertion())
    }

    common_methods!();
}
