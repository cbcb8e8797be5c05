// What tokens look like: "mpt_<12 hex digits: its id>_<64 hex digits: 256 random bits>" a user's,
// "mpj_..." one that hosts join with. The text is shown once; what is kept is its SHA-256.
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

// The id in the text of a token of this kind; empty when it has not that form. Says nothing of
// whether it is genuine.
std::string TokenIdOf(absl::string_view text, TokenKind kind = TokenKind::kUser);

// The line that `init-pki` leaves for the coordinator: "<id> <64 hex digits: SHA-256>".
std::string TokenDigestLine(const NewToken& token);
// INVALID_ARGUMENT when the line is none. The text is empty.
absl::StatusOr<NewToken> ParseTokenDigestLine(absl::string_view line);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_TOKEN_TEXT_H_
