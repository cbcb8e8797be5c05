// The file of `milepost-coordinator --webhooks FILE`: who gets messages about jobs that have ended.
//
//   webhooks:
//     - name: team
//       url: https://example.org/hook
//       secret: "0123456789abcdef"
//       projects: [vision]
//       states: [failed]
#ifndef MILEPOST_COORDINATOR_WEBHOOKS_WEBHOOK_FILE_H_
#define MILEPOST_COORDINATOR_WEBHOOKS_WEBHOOK_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "milepost/v1/job.pb.h"

namespace milepost::coordinator {

struct Webhook {
  std::string name;                   // letters, digits, '-', '_' and '.', at most 63 characters
  std::string url;                    // https://..., or http://...
  std::string secret;                 // at least 16 characters; the key of signatures
  std::vector<std::string> projects;  // whose jobs count; empty: all
  std::vector<std::string> states;    // "succeeded", "failed", "cancelled"; empty: all of them
};

// INVALID_ARGUMENT names file, line or entry. It never has a secret, or any part of a URL besides
// its host.
absl::StatusOr<std::vector<Webhook>> ParseWebhooks(absl::string_view text,
                                                   absl::string_view filename);
// Reads and parses a file.
absl::StatusOr<std::vector<Webhook>> ReadWebhooks(const std::string& path);

// True when the webhook wants a message about this job, which has ended.
bool Wants(const Webhook& webhook, const v1::Job& job);

// The message: JSON on one line.
std::string WebhookBody(const v1::Job& job);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_WEBHOOKS_WEBHOOK_FILE_H_
