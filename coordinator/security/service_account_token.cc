#include "coordinator/security/service_account_token.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

using nlohmann::json;

constexpr size_t kMostKeys = 64;
constexpr int kLeastRsaBits = 2048, kMostRsaBits = 8192;
constexpr absl::Duration kClocksDiffer = absl::Minutes(1);
constexpr absl::string_view kSubject = "system:serviceaccount:";

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(OSSL_PARAM_BLD* builder) const { OSSL_PARAM_BLD_free(builder); }
  void operator()(OSSL_PARAM* parameters) const { OSSL_PARAM_free(parameters); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(ECDSA_SIG* signature) const { ECDSA_SIG_free(signature); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;
using PublicKey = Owned<EVP_PKEY>;

const unsigned char* BytesOf(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

absl::Status Refused(absl::string_view why) {
  return Refusal(v1::ERROR_REASON_TOKEN_UNKNOWN, "",
                 absl::StrCat("the service account's token ", why));
}

// Above all not HS*, whose key would be one that anybody may read, and not "none".
struct Algorithm {
  absl::string_view name;
  const EVP_MD* (*digest)();
  size_t curve_bytes = 0;  // of each of the two numbers of a signature; 0: RSA
};
constexpr Algorithm kAlgorithms[] = {
    {"RS256", EVP_sha256},     {"RS384", EVP_sha384},     {"RS512", EVP_sha512},
    {"ES256", EVP_sha256, 32}, {"ES384", EVP_sha384, 48}, {"ES512", EVP_sha512, 66},
};
struct Curve {
  absl::string_view name;
  const char* openssl_name;
  size_t bytes;
};
constexpr Curve kCurves[] = {
    {"P-256", "prime256v1", 32}, {"P-384", "secp384r1", 48}, {"P-521", "secp521r1", 66}};

const Algorithm* AlgorithmOf(absl::string_view name) {
  const auto* const found = std::find_if(std::begin(kAlgorithms), std::end(kAlgorithms),
                                         [&](const Algorithm& one) { return one.name == name; });
  return found != std::end(kAlgorithms) ? found : nullptr;
}

// Base64 of the kind that is safe in addresses, without padding (RFC 7515, 2).
std::optional<std::string> Decoded(absl::string_view text) {
  const bool good = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_';
  });
  std::string bytes;
  if (!good || !absl::WebSafeBase64Unescape(text, &bytes)) return std::nullopt;
  return bytes;
}

PublicKey MakeKey(const char* kind, OSSL_PARAM_BLD* builder) {
  const Owned<OSSL_PARAM> parameters(OSSL_PARAM_BLD_to_param(builder));
  const Owned<EVP_PKEY_CTX> context(EVP_PKEY_CTX_new_from_name(nullptr, kind, nullptr));
  EVP_PKEY* key = nullptr;
  if (parameters == nullptr || context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, parameters.get()) != 1) {
    ERR_clear_error();
    return nullptr;
  }
  return PublicKey(key);
}

PublicKey RsaKey(const std::string& modulus, const std::string& exponent) {
  if (modulus.size() > kMostRsaBits / 8 || exponent.size() > 8) return nullptr;
  const Owned<OSSL_PARAM_BLD> builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr) return nullptr;
  const Owned<BIGNUM> n(BN_bin2bn(BytesOf(modulus), static_cast<int>(modulus.size()), nullptr));
  const Owned<BIGNUM> e(BN_bin2bn(BytesOf(exponent), static_cast<int>(exponent.size()), nullptr));
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, n.get());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, e.get());
  return MakeKey("RSA", builder.get());
}

PublicKey CurveKey(const Curve& curve, const std::string& x, const std::string& y) {
  if (x.size() != curve.bytes || y.size() != curve.bytes) return nullptr;
  const std::string point = absl::StrCat("\x04", x, y);  // not compressed
  const Owned<OSSL_PARAM_BLD> builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr) return nullptr;
  OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, curve.openssl_name, 0);
  OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                   point.size());
  return MakeKey("EC", builder.get());
}

// The two numbers, as OpenSSL has them (RFC 7518, 3.4); empty: they are none.
std::string DerOf(absl::string_view numbers, size_t bytes) {
  if (numbers.size() != 2 * bytes) return "";
  const Owned<ECDSA_SIG> signature(ECDSA_SIG_new());
  Owned<BIGNUM> r(BN_bin2bn(BytesOf(numbers), static_cast<int>(bytes), nullptr));
  Owned<BIGNUM> s(BN_bin2bn(BytesOf(numbers.substr(bytes)), static_cast<int>(bytes), nullptr));
  if (signature == nullptr || ECDSA_SIG_set0(signature.get(), r.get(), s.get()) != 1) return "";
  r.release();
  s.release();
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(signature.get(), &der);
  if (size <= 0) return "";
  std::string text(reinterpret_cast<const char*>(der), static_cast<size_t>(size));
  OPENSSL_free(der);
  return text;
}

bool IsSignedBy(EVP_PKEY* key, const Algorithm& algorithm, absl::string_view body,
                absl::string_view signature) {
  const Owned<EVP_MD_CTX> context(EVP_MD_CTX_new());
  const bool good =
      context != nullptr &&
      EVP_DigestVerifyInit(context.get(), nullptr, algorithm.digest(), nullptr, key) == 1 &&
      EVP_DigestVerify(context.get(), BytesOf(signature), signature.size(), BytesOf(body),
                       body.size()) == 1;
  if (!good) ERR_clear_error();  // else this thread's next TLS call takes it for its own
  return good;
}

std::string TextOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::optional<absl::Time> TimeOf(const json& claims, const char* name) {
  const auto found = claims.find(name);
  if (found == claims.end() || !found->is_number()) return std::nullopt;
  return absl::UnixEpoch() + absl::Seconds(found->get<double>());
}

bool IsFor(const json& claims, const std::string& audience) {
  const auto found = claims.find("aud");
  if (found == claims.end()) return false;
  if (found->is_string()) return found->get<std::string>() == audience;
  return found->is_array() && std::any_of(found->begin(), found->end(), [&](const json& one) {
           return one.is_string() && one.get<std::string>() == audience;
         });
}

// Null: none that is known here.
PublicKey KeyOf(const json& one, size_t* curve_bytes) {
  const std::string kind = TextOf(one, "kty");
  if (kind == "RSA") {
    const auto n = Decoded(TextOf(one, "n")), e = Decoded(TextOf(one, "e"));
    return n && e ? RsaKey(*n, *e) : nullptr;
  }
  if (kind != "EC") return nullptr;
  for (const Curve& curve : kCurves) {
    if (curve.name != TextOf(one, "crv")) continue;
    *curve_bytes = curve.bytes;
    const auto x = Decoded(TextOf(one, "x")), y = Decoded(TextOf(one, "y"));
    return x && y ? CurveKey(curve, *x, *y) : nullptr;
  }
  return nullptr;
}

bool IsDnsName(absl::string_view name) {
  return !name.empty() && name.size() <= 253 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '.';
  });
}

}  // namespace

struct KeySet::Key {
  PublicKey key;
  std::string id;
  size_t curve_bytes = 0;  // 0: RSA
};

bool IsAccountToken(absl::string_view text) {
  return absl::StartsWith(text, "eyJ") && std::count(text.begin(), text.end(), '.') == 2;
}

absl::StatusOr<KeySet> KeySet::Parse(absl::string_view text) {
  if (text.size() > kMostKeySetBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key set of more than ", kMostKeySetBytes, " bytes"));
  }
  const json set = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!set.is_object() || !set.contains("keys") || !set["keys"].is_array()) {
    return absl::InvalidArgumentError("no JSON Web Key Set: {\"keys\": [...]}");
  }
  KeySet keys;
  size_t short_ones = 0;
  for (const json& one : set["keys"]) {
    if (!one.is_object() || keys.keys_.size() == kMostKeys) continue;
    const std::string use = TextOf(one, "use");
    if (!use.empty() && use != "sig") continue;
    Key key{.key = nullptr, .id = TextOf(one, "kid")};
    key.key = KeyOf(one, &key.curve_bytes);
    if (key.key == nullptr) continue;
    if (key.curve_bytes == 0 && EVP_PKEY_get_bits(key.key.get()) < kLeastRsaBits) {
      ++short_ones;
      continue;
    }
    keys.keys_.push_back(std::make_shared<const Key>(std::move(key)));
  }
  if (!keys.keys_.empty()) return keys;
  return absl::InvalidArgumentError(short_ones > 0
                                        ? "a key set whose RSA keys have less than 2048 bits"
                                        : "a key set without a key for signatures (RSA or EC)");
}

absl::StatusOr<std::string> KeySet::Verify(absl::string_view token) const {
  if (token.size() > kMostAccountTokenBytes) return Refused("is too long");
  const std::vector<absl::string_view> parts = absl::StrSplit(token, '.');
  if (parts.size() != 3) return Refused("is no signed JSON Web Token");
  const auto header_text = Decoded(parts[0]), claims = Decoded(parts[1]),
             signature = Decoded(parts[2]);
  if (!header_text || !claims || !signature) return Refused("is no signed JSON Web Token");
  const json header = json::parse(*header_text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object() || header.contains("crit")) {
    return Refused("is no signed JSON Web Token that is known here");
  }
  const Algorithm* algorithm = AlgorithmOf(TextOf(header, "alg"));
  if (algorithm == nullptr) return Refused("is signed in a way that does not count here");
  const size_t curve_bytes = algorithm->curve_bytes;
  const std::string proof = curve_bytes > 0 ? DerOf(*signature, curve_bytes) : *signature;
  const absl::string_view body = token.substr(0, parts[0].size() + 1 + parts[1].size());
  const std::string id = TextOf(header, "kid");
  // Clusters name it. So that nobody has us try all of them.
  if (id.empty() && keys_.size() > 1) return Refused("does not name its key");
  bool known = id.empty();
  for (const auto& key : keys_) {
    if (!id.empty() && key->id != id) continue;
    known = true;
    if (key->curve_bytes != curve_bytes) continue;
    if (IsSignedBy(key->key.get(), *algorithm, body, proof)) return *claims;
  }
  if (known) return Refused("is not signed by the cluster that this coordinator knows");
  return absl::NotFoundError("the token names a key that is not known");
}

bool IsServiceAccountName(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  return parts.size() == 2 && IsDnsName(parts[0]) && IsDnsName(parts[1]);
}

absl::StatusOr<ServiceAccount> ReadClaims(absl::string_view text, const ClaimRules& rules,
                                          absl::Time now) {
  const json claims = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!claims.is_object()) return Refused("has no claims");
  if (TextOf(claims, "iss") != rules.issuer) {
    return Refused("is of another issuer than --service-account-issuer");
  }
  if (!IsFor(claims, rules.audience)) {
    return Refused(absl::StrCat("is not for the audience ", rules.audience));
  }
  const std::optional<absl::Time> expire = TimeOf(claims, "exp");
  if (!expire) return Refused("has no end");
  if (now >= *expire) {
    return Refusal(v1::ERROR_REASON_TOKEN_EXPIRED, "",
                   absl::StrCat("the service account's token expired at ",
                                absl::FormatTime(absl::RFC3339_sec, *expire, absl::UTCTimeZone()),
                                ": read it anew from where the cluster puts it"));
  }
  if (TimeOf(claims, "nbf").value_or(absl::InfinitePast()) > now + kClocksDiffer) {
    return Refused("does not hold yet: compare the clocks of the cluster and of this host");
  }
  const std::string subject = TextOf(claims, "sub");
  absl::string_view account = subject;
  if (!absl::ConsumePrefix(&account, kSubject)) return Refused("is of no service account");
  const std::vector<std::string> parts = absl::StrSplit(account, ':');
  std::string name = parts.size() == 2 ? absl::StrCat(parts[0], "/", parts[1]) : "";
  if (!IsServiceAccountName(name)) return Refused("is of no service account");
  return ServiceAccount{std::move(name), *expire};
}

}  // namespace milepost::coordinator
