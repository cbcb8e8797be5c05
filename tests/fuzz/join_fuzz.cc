// What hosts that join and administrators send as text: certificate requests, addresses, join
// tokens. A request that is taken has a key whose digest is always the same.
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/check.h"
#include "common/pki/certificate.h"
#include "coordinator/security/address_range.h"
#include "worker/join/join_token.h"

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
  return 0;
}
