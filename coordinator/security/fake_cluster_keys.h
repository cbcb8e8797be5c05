// For tests: a Kubernetes cluster's signing key. It signs tokens of service accounts only with
// OpenSSL, so that our reader is not tested against itself.
#ifndef MILEPOST_COORDINATOR_SECURITY_FAKE_CLUSTER_KEYS_H_
#define MILEPOST_COORDINATOR_SECURITY_FAKE_CLUSTER_KEYS_H_

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

class FakeClusterKeys {
 public:
  static constexpr char kIssuer[] = "https://kubernetes.default.svc.cluster.local";

  explicit FakeClusterKeys(std::string id) : id_(std::move(id)) {}

  // Returns a JSON Web Key Set.
  std::string Jwks() const {
    std::vector<unsigned char> point(65);  // 4, x, y
    size_t size = 0;
    EVP_PKEY_get_octet_string_param(key_.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(), point.size(),
                                    &size);
    const auto part = [&](size_t begin) {
      return absl::WebSafeBase64Escape(std::string(point.begin() + static_cast<long>(begin),
                                                   point.begin() + static_cast<long>(begin) + 32));
    };
    return nlohmann::json{{"keys",
                           {{{"kty", "EC"},
                             {"use", "sig"},
                             {"alg", "ES256"},
                             {"crv", "P-256"},
                             {"kid", id_},
                             {"x", part(1)},
                             {"y", part(33)}}}}}
        .dump();
  }

  // The claims of the token that the cluster projects into a pod of the account.
  static nlohmann::json Claims(const std::string& name_space, const std::string& account,
                               absl::Time now) {
    return {{"iss", kIssuer},
            {"aud", {"milepost"}},
            {"sub", absl::StrCat("system:serviceaccount:", name_space, ":", account)},
            {"nbf", absl::ToUnixSeconds(now)},
            {"iat", absl::ToUnixSeconds(now)},
            {"exp", absl::ToUnixSeconds(now + absl::Hours(1))}};
  }
  std::string Sign(const nlohmann::json& claims) const {
    const nlohmann::json header = {{"alg", "ES256"}, {"kid", id_}};
    const std::string body = absl::StrCat(absl::WebSafeBase64Escape(header.dump()), ".",
                                          absl::WebSafeBase64Escape(claims.dump()));
    return absl::StrCat(body, ".", absl::WebSafeBase64Escape(Signature(body)));
  }
  std::string Token(const std::string& name_space, const std::string& account,
                    absl::Time now) const {
    return Sign(Claims(name_space, account, now));
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
    void operator()(ECDSA_SIG* signature) const { ECDSA_SIG_free(signature); }
  };
  // r and s, 32 bytes each (RFC 7518, 3.4). OpenSSL has them as DER.
  std::string Signature(const std::string& body) const {
    const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
    EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key_.get());
    unsigned char der[128];
    size_t size = sizeof der;
    EVP_DigestSign(context.get(), der, &size, reinterpret_cast<const unsigned char*>(body.data()),
                   body.size());
    const unsigned char* at = der;
    const std::unique_ptr<ECDSA_SIG, Free> signature(
        d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(size)));
    unsigned char raw[64];
    BN_bn2binpad(ECDSA_SIG_get0_r(signature.get()), raw, 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(signature.get()), raw + 32, 32);
    return std::string(reinterpret_cast<const char*>(raw), sizeof raw);
  }

  const std::string id_;
  const std::unique_ptr<EVP_PKEY, Free> key_{EVP_EC_gen("P-256")};
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_FAKE_CLUSTER_KEYS_H_
