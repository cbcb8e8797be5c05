#include "common/pki/certificate.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/pki/secret.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

constexpr absl::Duration kClocksDiffer = absl::Minutes(10);
constexpr int kSerialBytes = 16;
constexpr absl::string_view kWorkerUri = "milepost://workers/";
constexpr absl::string_view kPoolUri = "milepost://pools/";
constexpr int kLeastSecurityBits = 112;  // NIST SP 800-57 part 1, table 2

template <typename T, void (*kFree)(T*)>
struct Freer {
  void operator()(T* object) const { kFree(object); }
};
template <typename T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Freer<T, kFree>>;

void FreeBio(BIO* bio) { BIO_free(bio); }
void FreeNames(GENERAL_NAMES* names) { GENERAL_NAMES_free(names); }

using OwnedBio = Owned<BIO, FreeBio>;
using OwnedKey = Owned<EVP_PKEY, EVP_PKEY_free>;
using OwnedCertificate = Owned<X509, X509_free>;
using OwnedExtension = Owned<X509_EXTENSION, X509_EXTENSION_free>;
using OwnedRequest = Owned<X509_REQ, X509_REQ_free>;
using OwnedNames = Owned<GENERAL_NAMES, FreeNames>;

// OpenSSL's own words for what failed last.
absl::Status Failed(absl::string_view what) {
  char reason[256] = "unknown reason";
  if (const unsigned long code = ERR_get_error(); code != 0) {
    ERR_error_string_n(code, reason, sizeof reason);
  }
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(what, ": ", reason));
}

// Else OpenSSL asks for one at the terminal, for ever, of a PEM that says to be encrypted.
int NoPassPhrase(char*, int, int, void*) { return -1; }

OwnedBio Reader(const std::string& text) {
  return OwnedBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string Written(BIO* bio) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<OwnedKey> ParseKey(const std::string& pem) {
  OwnedKey key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassPhrase, nullptr));
  if (key != nullptr) return key;
  ERR_clear_error();
  return absl::InvalidArgumentError("not a private key in PEM form");
}

absl::StatusOr<OwnedCertificate> ParseCertificate(const std::string& pem) {
  OwnedCertificate certificate(
      PEM_read_bio_X509(Reader(pem).get(), nullptr, NoPassPhrase, nullptr));
  if (certificate != nullptr) return certificate;
  ERR_clear_error();
  return absl::InvalidArgumentError("not a certificate in PEM form");
}

bool IsAddress(const std::string& host) {
  char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

absl::Status CheckHost(const std::string& host) {
  const bool good = std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '*' || c == '_';
  });
  if (!host.empty() && host.size() <= 253 && (good || IsAddress(host))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", host.substr(0, 256), "' is neither a host name nor an IP address"));
}

absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  OwnedExtension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1) {
    return absl::OkStatus();
  }
  return Failed(absl::StrCat("cannot add '", value, "' to a certificate"));
}

// Everything but issuer, extensions and signature.
absl::StatusOr<OwnedCertificate> Begin(const std::string& name, EVP_PKEY* key, absl::Time now,
                                       absl::Duration lifetime) {
  OwnedCertificate certificate(X509_new());
  unsigned char serial[kSerialBytes];
  if (certificate == nullptr || RAND_bytes(serial, kSerialBytes) != 1) {
    return Failed("cannot make a certificate");
  }
  serial[0] &= 0x7f;  // positive
  BIGNUM* number = BN_bin2bn(serial, kSerialBytes, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  const time_t begin = absl::ToTimeT(now - kClocksDiffer);
  const time_t end = absl::ToTimeT(now + lifetime);
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  const bool made = X509_set_version(certificate.get(), X509_VERSION_3) == 1 &&
                    ASN1_TIME_set(X509_getm_notBefore(certificate.get()), begin) != nullptr &&
                    ASN1_TIME_set(X509_getm_notAfter(certificate.get()), end) != nullptr &&
                    X509_set_pubkey(certificate.get(), key) == 1 &&
                    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, text, -1, -1, 0) == 1;
  if (!made) return Failed(absl::StrCat("cannot make a certificate for '", name, "'"));
  return certificate;
}

absl::StatusOr<std::string> Sign(X509* certificate, EVP_PKEY* key) {
  OwnedBio bio(BIO_new(BIO_s_mem()));
  if (X509_sign(certificate, key, EVP_sha256()) == 0 ||
      PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return Failed("cannot sign a certificate");
  }
  return Written(bio.get());
}

std::string SubjectAlternatives(const Certificate& wanted) {
  std::string list;
  const auto add = [&](absl::string_view kind, const std::string& value) {
    absl::StrAppend(&list, list.empty() ? "" : ",", kind, ":", value);
  };
  for (const std::string& host : wanted.hosts) add(IsAddress(host) ? "IP" : "DNS", host);
  if (!wanted.uri.empty()) add("URI", wanted.uri);
  if (!wanted.pool.empty()) add("URI", PoolUri(wanted.pool));
  return list;
}

std::string TextOf(const ASN1_STRING* text) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<size_t>(ASN1_STRING_length(text)));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  ASN1_TIME_to_tm(time, &parts);
  return absl::FromTM(parts, absl::UTCTimeZone());
}

void ReadUri(std::string uri, Certificate* read) {
  if (std::string pool = PoolOfUri(uri); !pool.empty()) {
    read->pool = std::move(pool);
  } else {
    read->uri = std::move(uri);
  }
}

void ReadAlternatives(const X509* certificate, Certificate* read) {
  OwnedNames names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  if (names == nullptr) return;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) read->hosts.push_back(TextOf(name->d.dNSName));
    if (name->type == GEN_URI) ReadUri(TextOf(name->d.uniformResourceIdentifier), read);
    if (name->type != GEN_IPADD) continue;
    const std::string bytes = TextOf(name->d.iPAddress);
    char text[INET6_ADDRSTRLEN] = "";
    inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
    read->hosts.push_back(text);
  }
}

using Extensions = std::vector<std::pair<int, std::string>>;  // by NID

Extensions ExtensionsOf(const Certificate& wanted) {
  return {{NID_basic_constraints, "critical,CA:FALSE"},
          {NID_key_usage, "critical,digitalSignature"},
          {NID_ext_key_usage, wanted.uri.empty() ? "serverAuth" : "clientAuth"},
          {NID_authority_key_identifier, "keyid"},
          {NID_subject_alt_name, SubjectAlternatives(wanted)}};
}

absl::StatusOr<std::string> IssueFor(const KeyPair& authority, const Certificate& wanted,
                                     EVP_PKEY* key, absl::Time now, absl::Duration lifetime) {
  for (const std::string& host : wanted.hosts) MP_RETURN_IF_ERROR(CheckHost(host));
  MP_ASSIGN_OR_RETURN(OwnedCertificate issuer, ParseCertificate(authority.certificate));
  MP_ASSIGN_OR_RETURN(OwnedKey issuer_key, ParseKey(authority.key));
  MP_ASSIGN_OR_RETURN(OwnedCertificate certificate, Begin(wanted.name, key, now, lifetime));
  X509* raw = certificate.get();
  if (X509_set_issuer_name(raw, X509_get_subject_name(issuer.get())) != 1) {
    return Failed("cannot name the issuer");
  }
  for (const auto& [nid, value] : ExtensionsOf(wanted)) {
    MP_RETURN_IF_ERROR(AddExtension(raw, issuer.get(), nid, value));
  }
  return Sign(raw, issuer_key.get());
}

absl::StatusOr<OwnedKey> KeyOfRequest(const std::string& pem) {
  const OwnedRequest request(
      PEM_read_bio_X509_REQ(Reader(pem).get(), nullptr, NoPassPhrase, nullptr));
  OwnedKey key(request == nullptr ? nullptr : X509_REQ_get_pubkey(request.get()));
  if (key == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError("not a certificate request in PEM form");
  }
  if (EVP_PKEY_get_security_bits(key.get()) < kLeastSecurityBits) {
    return absl::InvalidArgumentError(
        "the key is too weak: ECDSA over P-256, or RSA of 2048 bits, at least");
  }
  if (X509_REQ_verify(request.get(), key.get()) == 1) return key;
  ERR_clear_error();
  return absl::InvalidArgumentError("the certificate request is not signed with its own key");
}

}  // namespace

absl::StatusOr<std::string> MakePrivateKey() {
  OwnedKey key(EVP_EC_gen("P-256"));
  OwnedBio bio(BIO_new(BIO_s_mem()));
  if (key == nullptr ||
      PEM_write_bio_PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("cannot make a private key");
  }
  return Written(bio.get());
}

absl::StatusOr<KeyPair> MakeAuthority(const std::string& name, const std::string& key,
                                      absl::Time now, absl::Duration lifetime) {
  MP_ASSIGN_OR_RETURN(OwnedKey own, ParseKey(key));
  MP_ASSIGN_OR_RETURN(OwnedCertificate certificate, Begin(name, own.get(), now, lifetime));
  X509* raw = certificate.get();
  if (X509_set_issuer_name(raw, X509_get_subject_name(raw)) != 1) {
    return Failed("cannot name the authority");
  }
  MP_RETURN_IF_ERROR(AddExtension(raw, raw, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  MP_RETURN_IF_ERROR(AddExtension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign"));
  MP_RETURN_IF_ERROR(AddExtension(raw, raw, NID_subject_key_identifier, "hash"));
  MP_ASSIGN_OR_RETURN(std::string pem, Sign(raw, own.get()));
  return KeyPair{std::move(pem), key};
}

absl::StatusOr<std::string> IssueCertificate(const KeyPair& authority, const Certificate& wanted,
                                             const std::string& key, absl::Time now,
                                             absl::Duration lifetime) {
  MP_ASSIGN_OR_RETURN(const OwnedKey own, ParseKey(key));
  return IssueFor(authority, wanted, own.get(), now, lifetime);
}

absl::StatusOr<std::string> MakeCertificateRequest(const std::string& name,
                                                   const std::string& key) {
  MP_ASSIGN_OR_RETURN(const OwnedKey own, ParseKey(key));
  OwnedRequest request(X509_REQ_new());
  OwnedBio bio(BIO_new(BIO_s_mem()));
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  const bool made = request != nullptr &&
                    X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) == 1 &&
                    X509_REQ_set_pubkey(request.get(), own.get()) == 1 &&
                    X509_NAME_add_entry_by_txt(X509_REQ_get_subject_name(request.get()), "CN",
                                               MBSTRING_UTF8, text, -1, -1, 0) == 1 &&
                    X509_REQ_sign(request.get(), own.get(), EVP_sha256()) != 0 &&
                    PEM_write_bio_X509_REQ(bio.get(), request.get()) == 1;
  if (!made) return Failed("cannot make a certificate request");
  return Written(bio.get());
}

absl::StatusOr<std::string> IssueForRequest(const KeyPair& authority, const Certificate& wanted,
                                            const std::string& request, absl::Time now,
                                            absl::Duration lifetime) {
  MP_ASSIGN_OR_RETURN(const OwnedKey own, KeyOfRequest(request));
  return IssueFor(authority, wanted, own.get(), now, lifetime);
}

absl::StatusOr<std::string> KeyDigestOfRequest(const std::string& request) {
  MP_ASSIGN_OR_RETURN(const OwnedKey own, KeyOfRequest(request));
  unsigned char* bytes = nullptr;
  const int size = i2d_PUBKEY(own.get(), &bytes);
  if (size <= 0) return Failed("cannot write a public key");
  std::string digest =
      Sha256(absl::string_view(reinterpret_cast<char*>(bytes), static_cast<size_t>(size)));
  OPENSSL_free(bytes);
  return digest;
}

absl::StatusOr<bool> HasCertificate(const std::string& bundle, const std::string& certificate) {
  MP_ASSIGN_OR_RETURN(const OwnedCertificate wanted, ParseCertificate(certificate));
  const OwnedBio bio = Reader(bundle);
  bool any = false;
  while (true) {
    const OwnedCertificate one(PEM_read_bio_X509(bio.get(), nullptr, NoPassPhrase, nullptr));
    if (one == nullptr) break;
    any = true;
    if (X509_cmp(one.get(), wanted.get()) == 0) return true;
  }
  ERR_clear_error();
  if (!any) return absl::InvalidArgumentError("not a certificate in PEM form");
  return false;
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& pem) {
  MP_ASSIGN_OR_RETURN(OwnedCertificate certificate, ParseCertificate(pem));
  Certificate read;
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name,
                            sizeof name);
  read.name = name;
  ReadAlternatives(certificate.get(), &read);
  read.not_before = TimeOf(X509_get0_notBefore(certificate.get()));
  read.not_after = TimeOf(X509_get0_notAfter(certificate.get()));
  return read;
}

absl::Status CheckKeyIsOf(const std::string& certificate_pem, const std::string& key_pem) {
  MP_ASSIGN_OR_RETURN(const OwnedCertificate certificate, ParseCertificate(certificate_pem));
  MP_ASSIGN_OR_RETURN(const OwnedKey key, ParseKey(key_pem));
  if (X509_check_private_key(certificate.get(), key.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return absl::InvalidArgumentError("the key is not the certificate's");
}

std::string WorkerUri(absl::string_view id) { return absl::StrCat(kWorkerUri, id); }

std::string WorkerIdOfUri(absl::string_view uri) {
  return absl::ConsumePrefix(&uri, kWorkerUri) ? std::string(uri) : "";
}

std::string PoolUri(absl::string_view pool) { return absl::StrCat(kPoolUri, pool); }

std::string PoolOfUri(absl::string_view uri) {
  return absl::ConsumePrefix(&uri, kPoolUri) ? std::string(uri) : "";
}

}  // namespace milepost
