#include "coordinator/security/token_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/pki/secret.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kIdDigits = 12;
constexpr size_t kSecretBytes = 32;

absl::string_view PrefixOf(TokenKind kind) { return kind == TokenKind::kUser ? "mpt_" : "mpj_"; }

bool IsHex(absl::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

NewToken MakeToken(TokenKind kind) {
  NewToken token;
  token.id = RandomHex(kIdDigits / 2);
  token.text = absl::StrCat(PrefixOf(kind), token.id, "_", RandomHex(kSecretBytes));
  token.sha256 = Sha256(token.text);
  return token;
}

std::string TokenIdOf(absl::string_view text, TokenKind kind) {
  if (!absl::ConsumePrefix(&text, PrefixOf(kind))) return "";
  const bool good = text.size() == kIdDigits + 1 + 2 * kSecretBytes && text[kIdDigits] == '_' &&
                    IsHex(text.substr(0, kIdDigits), kIdDigits) &&
                    IsHex(text.substr(kIdDigits + 1), 2 * kSecretBytes);
  return good ? std::string(text.substr(0, kIdDigits)) : "";
}

std::string TokenDigestLine(const NewToken& token) {
  return absl::StrCat(token.id, " ", absl::BytesToHexString(token.sha256), "\n");
}

absl::StatusOr<NewToken> ParseTokenDigestLine(absl::string_view line) {
  const std::vector<std::string> parts = absl::StrSplit(absl::StripAsciiWhitespace(line), ' ');
  if (parts.size() != 2 || !IsHex(parts[0], kIdDigits) || !IsHex(parts[1], 2 * kSecretBytes)) {
    return absl::InvalidArgumentError("not a token's id and digest, as init-pki writes them");
  }
  return NewToken{.id = parts[0], .sha256 = absl::HexStringToBytes(parts[1])};
}

}  // namespace milepost::coordinator
