// Delivers messages to webhooks, at least once each, in order, on a thread for each webhook.
//
//   Courier courier(webhooks, {.done = [&](uint64_t number) { ... forget it ... }});
//   courier.Send({number, delivery});   // after it is durable
//
// A delivery is an HTTP POST of its body, with the headers
//
//   Milepost-Delivery: 12                        the same each time it is tried
//   Milepost-Signature: t=1700000000,v1=HEX      HMAC-SHA256 with the secret over "1700000000.BODY"
//
// It has succeeded with any 2xx answer within 10 s. Else it is tried again after 1 s, growing to 5
// minutes, with jitter, for a day from its making; those behind it wait. After that it is given up.
// An answer that says that the message is not wanted as it is, 3xx (redirections are not followed)
// or a 4xx that is about the message (400, 405, 406, 410, 411, 413 to 415, 422, 431), ends it the
// fifth time. Thread-safe; Send does not block.
#ifndef MILEPOST_COORDINATOR_WEBHOOKS_COURIER_H_
#define MILEPOST_COORDINATOR_WEBHOOKS_COURIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/webhooks/webhook_file.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

struct NumberedDelivery {
  uint64_t number = 0;
  v1::WebhookDelivery delivery;
};

struct CourierOptions {
  // It need not be kept any more: delivered, or given up. From the courier's threads.
  std::function<void(uint64_t number)> done;
  absl::Duration first_pause = absl::Seconds(1);
  absl::Duration longest_pause = absl::Minutes(5);
  absl::Duration patience = absl::Hours(24);  // from the delivery's making on
  int most_refusals = 5;                      // answers that do not want it as it is
  absl::Duration answer_time = absl::Seconds(10);
  size_t most_waiting = 10'000;  // of one webhook; the oldest are given up then
};

class Courier {
 public:
  Courier(std::vector<Webhook> webhooks, CourierOptions options);
  ~Courier();  // stops
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  const std::vector<Webhook>& webhooks() const { return webhooks_; }

  // To a webhook that there is none of any more: given up.
  void Send(NumberedDelivery delivery);

  // What is under way is broken off; what is not delivered stays so. Idempotent.
  void Stop();

 private:
  class Lane;
  const std::vector<Webhook> webhooks_;
  const CourierOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

// Lower-case hex of HMAC-SHA256.
std::string HmacSha256Hex(absl::string_view key, absl::string_view message);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_WEBHOOKS_COURIER_H_
