#include "coordinator/webhooks/courier.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/curl.h"
#include "common/proto_time.h"
#include "common/version.h"

namespace milepost::coordinator {
namespace {

// The others speak of the receiver, and may pass: a route that is not there yet (404), a secret
// that is being changed (401, 403), too many at once (429).
bool SpeaksOfTheMessage(long status) {
  constexpr long kUnwanted[] = {400, 405, 406, 410, 411, 413, 414, 415, 422, 431};
  const bool redirects = status >= 300 && status < 400;  // which are not followed
  return redirects ||
         std::find(std::begin(kUnwanted), std::end(kUnwanted), status) != std::end(kUnwanted);
}

size_t Discard(char*, size_t size, size_t count, void*) { return size * count; }

int IsStopping(void* stopping, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<std::atomic<bool>*>(stopping)->load() ? 1 : 0;
}

}  // namespace

std::string HmacSha256Hex(absl::string_view key, absl::string_view message) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

// Of one webhook.
class Courier::Lane {
 public:
  Lane(const Webhook& webhook, const CourierOptions& options)
      : webhook_(webhook), options_(options), curl_(curl_easy_init()), thread_([this] { Run(); }) {}
  ~Lane() { Stop(); }

  const std::string& name() const { return webhook_.name; }

  void Send(NumberedDelivery delivery) {
    uint64_t given_up = 0;
    {
      absl::MutexLock lock(&mutex_);
      waiting_.push_back(std::move(delivery));
      if (waiting_.size() > options_.most_waiting) {
        // Not the one that is under way.
        const auto oldest = waiting_.begin() + (waiting_.size() > 1 ? 1 : 0);
        given_up = oldest->number;
        waiting_.erase(oldest);
      }
    }
    if (given_up == 0) return;
    spdlog::warn("webhook {}: more than {} messages wait: number {} is given up", name(),
                 options_.most_waiting, given_up);
    options_.done(given_up);
  }

  void BeginStop() {
    stopping_ = true;
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  void Stop() {
    BeginStop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    while (true) {
      NumberedDelivery next;
      {
        absl::MutexLock lock(&mutex_);
        const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stop_ || !waiting_.empty();
        };
        mutex_.Await(absl::Condition(&ready));
        if (stop_) return;
        next = waiting_.front();
      }
      if (!Deliver(next)) return;
      {
        absl::MutexLock lock(&mutex_);
        waiting_.pop_front();
      }
      options_.done(next.number);
    }
  }

  // False when it was stopped before the end.
  bool Deliver(const NumberedDelivery& delivery) {
    const absl::Time deadline = FromProto(delivery.delivery.create_time()) + options_.patience;
    absl::Duration pause = options_.first_pause;
    int refusals = 0;
    for (int attempt = 1;; ++attempt) {
      const Answer answer = Post(delivery);
      if (stopping_) return false;
      const std::string& problem = answer.problem;
      if (problem.empty()) return true;
      refusals += answer.unwanted ? 1 : 0;
      const absl::Duration wait = pause * absl::Uniform(bits_, 0.5, 1.0);
      if (absl::Now() + wait > deadline || refusals == options_.most_refusals) {
        spdlog::warn("webhook {}: number {} is given up after {} attempts: {}", name(),
                     delivery.number, attempt, problem);
        return true;
      }
      if (attempt == 1) {
        spdlog::warn("webhook {}: number {}: {}; trying on", name(), delivery.number, problem);
      }
      pause = std::min(pause * 2, options_.longest_pause);
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), wait)) return false;
    }
  }

  struct Answer {
    std::string problem;    // empty: delivered; else why not, without anything that is a secret
    bool unwanted = false;  // the same message is hardly ever wanted
  };
  Answer Post(const NumberedDelivery& delivery) {
    if (curl_ == nullptr) return {"no memory for a connection"};
    const std::string& body = delivery.delivery.body();
    const int64_t now = absl::ToUnixSeconds(absl::Now());
    const std::string signature = HmacSha256Hex(webhook_.secret, absl::StrCat(now, ".", body));
    OwnedCurlList headers;
    for (const std::string& header :
         {std::string("Content-Type: application/json"), std::string("Expect:"),
          absl::StrCat("Milepost-Delivery: ", delivery.number),
          absl::StrCat("Milepost-Signature: t=", now, ",v1=", signature)}) {
      headers.reset(curl_slist_append(headers.release(), header.c_str()));
    }
    CURL* curl = curl_.get();
    curl_easy_reset(curl);  // keeps the connection
    curl_easy_setopt(curl, CURLOPT_URL, webhook_.url.c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(curl, CURLOPT_USERAGENT, absl::StrCat("milepost/", kVersion).c_str());
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                     static_cast<long>(absl::ToInt64Milliseconds(options_.answer_time)));
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Discard);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, IsStopping);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &stopping_);
    const CURLcode code = curl_easy_perform(curl);
    if (code != CURLE_OK) return {curl_easy_strerror(code)};
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300) return {};
    return {absl::StrCat("it answers with HTTP status ", status), SpeaksOfTheMessage(status)};
  }

  const Webhook webhook_;
  const CourierOptions options_;
  OwnedCurl curl_;
  absl::BitGen bits_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<NumberedDelivery> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: uses what is above
};

Courier::Courier(std::vector<Webhook> webhooks, CourierOptions options)
    : webhooks_(std::move(webhooks)), options_(std::move(options)) {
  InitialiseCurlOnce();
  for (const Webhook& webhook : webhooks_) {
    lanes_.push_back(std::make_unique<Lane>(webhook, options_));
  }
}

Courier::~Courier() { Stop(); }

void Courier::Send(NumberedDelivery delivery) {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->name() == delivery.delivery.webhook()) return lane->Send(std::move(delivery));
  }
  options_.done(delivery.number);
}

void Courier::Stop() {
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->BeginStop();
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->Stop();
}

}  // namespace milepost::coordinator
