// The form of tokens: "mpt_<12 hex digits: its id>_<64 hex digits: 256 random bits>" for users,
// "mpj_..." for joining hosts. The text is shown once. Only its SHA-256 is kept.
#ifndef MILEPOST_COORDINATOR_SECURITY_TOKEN_TEXT_H_
#define MILEPOST_COORDINATOR_SECURITY_TOKEN_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::coordinator {

struct NewToken {
  std::string id;
  std::string text;
  std::string sha256;  // of `text`, 32 bytes
};

enum class TokenKind { kUser, kJoin };

NewToken MakeToken(TokenKind kind = TokenKind::kUser);

// The id in the text of a token of this kind. Empty: the text has another form. The token may still
// be forged.
std::string TokenIdOf(absl::string_view text, TokenKind kind = TokenKind::kUser);

// The line that `init-pki` leaves for the coordinator: "<id> <64 hex digits: SHA-256>".
std::string TokenDigestLine(const NewToken& token);
// Returns the token without its text. INVALID_ARGUMENT: the line has another form.
absl::StatusOr<NewToken> ParseTokenDigestLine(absl::string_view line);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_TOKEN_TEXT_H_
