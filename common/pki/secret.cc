#include "common/pki/secret.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "common/check.h"

namespace milepost {

std::string RandomHex(size_t bytes) {
  std::string raw(bytes, '\0');
  const int made =
      RAND_priv_bytes(reinterpret_cast<unsigned char*>(raw.data()), static_cast<int>(bytes));
  MP_CHECK(made == 1) << "the operating system gives no randomness";
  return absl::BytesToHexString(raw);
}

std::string Sha256(absl::string_view text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace milepost
