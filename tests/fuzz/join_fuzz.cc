// What hosts that join and administrators send as text: certificate requests, addresses, join
// tokens, tokens of service accounts and the keys that these are signed with. No token is genuine
// that nobody has signed. A request that is taken has a key whose digest is always the same.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "common/pki/certificate.h"
#include "coordinator/security/address_range.h"
#include "coordinator/security/service_account_token.h"
#include "worker/join/join_token.h"

// A key of RFC 7515, A.3.
const milepost::coordinator::KeySet& Keys() {
  static const auto* const keys =
      new absl::StatusOr<milepost::coordinator::KeySet>(milepost::coordinator::KeySet::Parse(
          R"({"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",)"
          R"("y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]})"));
  return **keys;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace milepost;  // NOLINT
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto digest = KeyDigestOfRequest(text);
  if (digest.ok()) {
    MP_CHECK(digest->size() == 32);
    MP_CHECK(KeyDigestOfRequest(text) == digest);
  }
  (void)ReadCertificate(text);
  (void)HasCertificate(text, text);
  const auto range = coordinator::AddressRange::Parse(text);
  if (range.ok()) {
    MP_CHECK(range->Has(text.substr(0, text.find('/'))));
    (void)range->Has("10.0.0.1");
  }
  (void)coordinator::AddressOfPeer(text);
  const auto token = worker::ParseJoinToken(text);
  if (token.ok()) MP_CHECK(!token->secret.empty());
  MP_CHECK(!Keys().Verify(text).ok());
  const auto keys = coordinator::KeySet::Parse(text);
  if (keys.ok()) (void)keys->Verify("eyJhbGciOiJSUzI1NiJ9.e30.AA");
  const auto account =
      coordinator::ReadClaims(text, {.issuer = "i", .audience = "a"}, absl::UnixEpoch());
  if (account.ok()) MP_CHECK(coordinator::IsServiceAccountName(account->name));
  return 0;
}
