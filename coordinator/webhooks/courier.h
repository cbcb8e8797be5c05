// Delivers messages to webhooks: each at least once, in order, on one thread for each webhook.
//
//   Courier courier(webhooks, {.done = [&](uint64_t number) { ... forget it ... }});
//   courier.Send({number, delivery});   // once it is durable
//
// A delivery is an HTTP POST of its body, with these headers:
//
//   Milepost-Delivery: 12                        the same at each attempt
//   Milepost-Signature: t=1700000000,v1=HEX      HMAC-SHA256 with the secret over "1700000000.BODY"
//
// Any 2xx answer within 10 s is a success. Otherwise it is tried again after 1 s, growing to 5
// minutes, with jitter. The deliveries behind it wait. A day after it was made, it is given up.
//
// Some answers refuse the message itself: 3xx (redirections are not followed), and the 4xx codes
// 400, 405, 406, 410, 411, 413 to 415, 422 and 431. The fifth of them ends the delivery.
// Thread-safe. Send does not block.
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
  // Called when a delivery need not be kept any longer: it was delivered or given up. Called on the
  // courier's threads.
  std::function<void(uint64_t number)> done;
  absl::Duration first_pause = absl::Seconds(1);
  absl::Duration longest_pause = absl::Minutes(5);
  absl::Duration patience = absl::Hours(24);  // counted from when the delivery was made
  int most_refusals = 5;                      // answers that refuse the message itself
  absl::Duration answer_time = absl::Seconds(10);
  size_t most_waiting = 10'000;  // for one webhook; beyond it the oldest are given up
};

class Courier {
 public:
  Courier(std::vector<Webhook> webhooks, CourierOptions options);
  ~Courier();  // stops
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  const std::vector<Webhook>& webhooks() const { return webhooks_; }

  // A delivery to a webhook that no longer exists is given up.
  void Send(NumberedDelivery delivery);

  // Breaks off running attempts. What is not delivered stays undelivered. Idempotent.
  void Stop();

 private:
  class Lane;
  const std::vector<Webhook> webhooks_;
  const CourierOptions options_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

// HMAC-SHA256 in lower-case hex.
std::string HmacSha256Hex(absl::string_view key, absl::string_view message);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_WEBHOOKS_COURIER_H_
