#include "coordinator/rpc/acceptor.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/http/listen.h"
#include "common/rpc/local_socket.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/unique_fd.h"
#include "coordinator/rpc/tcp_sockets.h"

namespace milepost::coordinator {
namespace {

constexpr int kReservedDescriptors = 1200;  // of the store 512 files, of etcd, gRPC and webhooks
constexpr int kMostConnections = 60'000;
constexpr int kSweepMs = 5;    // while somebody has not logged in
constexpr int kIdleMs = 1000;  // else
constexpr int kMostGivers = 64;
constexpr int kAcceptAtOnce = 64;  // before what else there is to do
constexpr int kExhaustedMs = 20;   // between tries when there is no descriptor
constexpr absl::Duration kGivingEnds = absl::Seconds(1);
constexpr absl::Duration kLogEvery = absl::Seconds(10);
constexpr char kConnectionProperty[] = "milepost_connection";
constexpr uint64_t kWakeUp = ~uint64_t{0};
constexpr uint64_t kListener = uint64_t{1} << 63;  // | which

// One line for many of the same.
class Complaint {
 public:
  void About(const std::string& what) {
    ++times_;
    const absl::Time now = SteadyNow();
    if (now < next_) return;
    const std::string more = times_ > 1 ? absl::StrCat(" (", times_, " of this kind)") : "";
    times_ = 0;
    spdlog::warn("{}{}", what, more);
    next_ = now + kLogEvery;
  }

 private:
  int64_t times_ = 0;
  absl::Time next_ = absl::InfinitePast();
};

// As Identify has marked it, 0 where it had ended by then; nullopt: it has not.
std::optional<uint64_t> MarkOf(const grpc::AuthContext& connection) {
  const auto values = connection.FindPropertyValues(kConnectionProperty);
  uint64_t id = 0;
  if (values.empty()) return std::nullopt;
  return absl::SimpleAtoi(absl::string_view(values[0].data(), values[0].size()), &id) ? id : 0;
}

// Of descriptors, or of memory for one: it passes.
bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

int RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, 2 * kMostConnections + 8192);
  if (limit.rlim_cur < wanted) {
    const rlimit raised = {.rlim_cur = wanted, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

ConnectionLimits LimitsFor(int descriptors, bool login) {
  const int reserved = std::min(kReservedDescriptors, descriptors * 3 / 4);
  ConnectionLimits limits;
  limits.all = std::clamp((descriptors - reserved) / 2, 16, kMostConnections);
  // What is on loopback without TLS is one host's alone.
  limits.of_address = login ? std::max(8, limits.all / 2) : limits.all;
  if (!login) limits.slots = 0;
  limits.queued = limits.all;
  if (!login) limits.queued_of_address = limits.all;
  return limits;
}

struct Acceptor::Impl : std::enable_shared_from_this<Impl> {
  explicit Impl(const ConnectionLimits& limits)
      : table(limits),
        slots(limits.slots),
        epoll(epoll_create1(EPOLL_CLOEXEC)),
        wake_up(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        spare(open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

  bool Watch(int fd, uint64_t id, uint32_t events) {
    epoll_event event = {.events = events, .data = {.u64 = id}};
    return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }
  // Whether new connections are waited for.
  void WatchListeners(bool on);
  void Run();
  void Serve(const epoll_event& event);
  void AcceptFrom(int listener);
  // False: there is nothing to accept.
  bool AcceptOne(int listener);
  void OutOfDescriptors(int listener, int error);
  void Take(UniqueFd fd, const std::string& address);
  void HandOver();
  void Give(uint64_t id, int slot, int fd);
  void GiveAll();
  void EndGiving();
  absl::Condition NoGivers() {
    return absl::Condition(
        +[](int* some) { return *some == 0; }, &givers);
  }
  void Sweep();
  void Cut(uint64_t id, const char* why);
  void End(uint64_t id);
  void Ungive(uint64_t id);
  uint64_t Identify(grpc::AuthContext* connection, int slot);
  enum class Answer { kLogsIn, kTellsNothing, kRefused };
  void Answered(uint64_t id, Answer answer);

  ConnectionTable table;
  const int slots;
  UniqueFd epoll;
  UniqueFd wake_up;
  UniqueFd spare;  // given up to close a connection that there is no descriptor for
  std::vector<std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>> doors;  // by slot
  std::vector<UniqueFd> listeners;
  std::thread thread;
  std::atomic<bool> stopping{false};

  struct Socket {
    UniqueFd fd;  // gRPC has another one of it
    std::string address;
  };
  absl::Mutex mutex;
  std::map<uint64_t, Socket> sockets ABSL_GUARDED_BY(mutex);
  absl::Mutex marking;
  struct ToGive {
    uint64_t id = 0;
    int slot = 0;
    int fd = -1;
  };
  absl::Mutex giving;
  std::deque<ToGive> to_give ABSL_GUARDED_BY(giving);
  int givers ABSL_GUARDED_BY(giving) = 0;
  // Of the thread alone.
  bool exhausted = false;
  Complaint refused, cut, no_descriptor;
};

// ---- the thread ----

void Acceptor::Impl::WatchListeners(bool on) {
  for (size_t i = 0; i < listeners.size(); ++i) {
    epoll_event event = {.events = on ? EPOLLIN : 0u, .data = {.u64 = kListener | i}};
    epoll_ctl(epoll.get(), EPOLL_CTL_MOD, listeners[i].get(), &event);
  }
}

void Acceptor::Impl::Run() {
  std::array<epoll_event, 256> events = {};
  while (!stopping) {
    HandOver();
    Sweep();
    const int wait = exhausted                           ? kExhaustedMs
                     : slots > 0 && table.HasStrangers() ? kSweepMs
                                                         : kIdleMs;
    const int count = epoll_wait(epoll.get(), events.data(), events.size(), wait);
    if (count < 0 && errno != EINTR) {
      spdlog::critical("connections cannot be waited for: {}", std::strerror(errno));
      return;
    }
    for (int i = 0; i < count; ++i) Serve(events[static_cast<size_t>(i)]);
    if (exhausted) {
      for (const UniqueFd& listener : listeners) AcceptFrom(listener.get());
    }
  }
}

void Acceptor::Impl::Serve(const epoll_event& event) {
  const uint64_t id = event.data.u64;
  if (id == kWakeUp) {
    uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t size = read(wake_up.get(), &ignored, sizeof ignored);
  } else if ((id & kListener) != 0) {
    AcceptFrom(listeners[id & ~kListener].get());
  } else {
    End(id);
  }
}

void Acceptor::Impl::AcceptFrom(int listener) {
  for (int i = 0; i < kAcceptAtOnce && AcceptOne(listener); ++i) continue;
}

bool Acceptor::Impl::AcceptOne(int listener) {
  sockaddr_storage name = {};
  socklen_t size = sizeof name;
  UniqueFd fd(
      accept4(listener, reinterpret_cast<sockaddr*>(&name), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.ok()) {
    if (std::exchange(exhausted, false)) {
      WatchListeners(true);
      spdlog::info("connections are taken again");
    }
    Take(std::move(fd), AddressOf(name));
    return true;
  }
  const int error = errno;
  if (error == EAGAIN || error == EWOULDBLOCK) return false;
  // Of the one connection alone: it was reset, or its network is away.
  if (!IsShortage(error)) return true;
  OutOfDescriptors(listener, error);
  return false;
}

// Closes one connection, so that its client learns of it, and comes back soon.
void Acceptor::Impl::OutOfDescriptors(int listener, int error) {
  no_descriptor.About(
      absl::StrCat("no connection can be taken: ", std::strerror(error),
                   "; start the coordinator with more descriptors (ulimit -n, LimitNOFILE=)"));
  if (!std::exchange(exhausted, true)) WatchListeners(false);
  spare.Reset();
  UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)).Reset();
  spare.Reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void Acceptor::Impl::Take(UniqueFd fd, const std::string& address) {
  const absl::StatusOr<uint64_t> id = table.Add(address, SteadyNow());
  if (!id.ok()) {
    refused.About(
        absl::StrCat("a connection from ", address, " is closed: ", id.status().message()));
    return;
  }
  if (!Watch(fd.get(), *id, 0)) return table.Remove(*id);
  {
    absl::MutexLock lock(&mutex);
    sockets[*id] = {.fd = std::move(fd), .address = address};
  }
  HandOver();
}

void Acceptor::Impl::HandOver() {
  while (const auto turn = table.NextTurn(SteadyNow())) {
    int fd = -1;
    {
      absl::MutexLock lock(&mutex);
      fd = fcntl(sockets.at(turn->id).fd.get(), F_DUPFD_CLOEXEC, 0);
    }
    if (fd < 0) {
      no_descriptor.About("a connection is closed: there is no descriptor for it");
      End(turn->id);
      continue;
    }
    Give(turn->id, turn->slot, fd);
  }
}

// On a thread of its own: gRPC goes on there with what comes over the connection, for as long as
// more does.
void Acceptor::Impl::Give(uint64_t id, int slot, int fd) {
  absl::MutexLock lock(&giving);
  to_give.push_back({id, slot, fd});
  if (givers >= kMostGivers) return;  // the first that is done takes it
  ++givers;
  std::thread([self = shared_from_this()] { self->GiveAll(); }).detach();
}

void Acceptor::Impl::GiveAll() {
  absl::MutexLock lock(&giving);
  while (!to_give.empty()) {
    const auto [id, slot, fd] = to_give.front();
    to_give.pop_front();
    giving.Unlock();
    if (stopping) {
      close(fd);  // gRPC would drop it without closing it
    } else {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.fd = fd;
      table.Given(id, SteadyNow());
      doors[static_cast<size_t>(slot)]->HandleNewConnection(&parameters);
    }
    giving.Lock();
  }
  --givers;
}

// gRPC is handed nothing from here on: it would drop it without closing it. Who has not logged in
// is cut, for gRPC may be reading on what they send.
void Acceptor::Impl::EndGiving() {
  for (const uint64_t id : table.Unknown()) {
    absl::MutexLock lock(&mutex);
    const auto found = sockets.find(id);
    if (found != sockets.end()) Abort(found->second.fd.get());
  }
  // Those who have logged in may keep a giver for longer, until the server has been shut down.
  absl::MutexLock lock(&giving);
  giving.AwaitWithTimeout(NoGivers(), kGivingEnds);
}

void Acceptor::Impl::Sweep() {
  if (slots == 0) return;
  for (const uint64_t id : table.Overdue(SteadyNow())) Cut(id, "has not logged in in time");
  for (const uint64_t id : table.Unread(SteadyNow())) Cut(id, "does not read its answers");
  for (const uint64_t id : table.Unknown()) {
    int64_t bytes = 0;
    {
      absl::MutexLock lock(&mutex);
      const auto found = sockets.find(id);
      if (found != sockets.end()) bytes = BytesReceived(found->second.fd.get());
    }
    if (!table.Sent(id, bytes)) continue;
    table.Misbehaved(id, SteadyNow());
    Cut(id, "sent too much without a login");
  }
}

// gRPC sees the end of it, and gives up what it holds for it.
void Acceptor::Impl::Cut(uint64_t id, const char* why) {
  std::string address;
  {
    absl::MutexLock lock(&mutex);
    const auto found = sockets.find(id);
    if (found == sockets.end()) return;
    address = found->second.address;
    Abort(found->second.fd.get());
  }
  cut.About(absl::StrCat("a connection from ", address, " is cut: it ", why));
  End(id);
}

void Acceptor::Impl::End(uint64_t id) {
  {
    absl::MutexLock lock(&mutex);
    const auto found = sockets.find(id);
    if (found == sockets.end()) return;
    // By closing it alone it would go on being watched as long as gRPC has its own of it.
    epoll_ctl(epoll.get(), EPOLL_CTL_DEL, found->second.fd.get(), nullptr);
    sockets.erase(found);
  }
  Ungive(id);
  table.Remove(id);
}

// One that no giver has come to is as gone as the others.
void Acceptor::Impl::Ungive(uint64_t id) {
  absl::MutexLock lock(&giving);
  const auto waits = std::find_if(to_give.begin(), to_give.end(),
                                  [id](const ToGive& one) { return one.id == id; });
  if (waits == to_give.end()) return;
  close(waits->fd);
  to_give.erase(waits);
}

// ---- gRPC's threads ----

// Which connection a call is on. Every call comes by here before anything else reads its
// connection's properties, so that adding one at the first is safe.
uint64_t Acceptor::Impl::Identify(grpc::AuthContext* connection, int slot) {
  absl::MutexLock lock(&marking);
  // Once: others read its properties from then on, and its slot may be another's later.
  if (const std::optional<uint64_t> mark = MarkOf(*connection)) return *mark;
  const uint64_t id = table.InSlot(slot);
  connection->AddProperty(kConnectionProperty, absl::StrCat(id));
  return id;
}

void Acceptor::Impl::Answered(uint64_t id, Answer answer) {
  const auto wake = [this] {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t size = write(wake_up.get(), &one, sizeof one);
  };
  if (answer == Answer::kLogsIn) {
    if (table.LoggedIn(id)) wake();
    return;
  }
  if (!table.Called(id, answer == Answer::kRefused)) return;
  table.Misbehaved(id, SteadyNow());
  absl::MutexLock lock(&mutex);
  const auto found = sockets.find(id);
  if (found != sockets.end()) Abort(found->second.fd.get());  // the thread sees the end of it
}

class Acceptor::Processor : public grpc::AuthMetadataProcessor {
 public:
  Processor(std::shared_ptr<Impl> impl, int slot,
            std::shared_ptr<grpc::AuthMetadataProcessor> inner)
      : impl_(std::move(impl)), slot_(slot), inner_(std::move(inner)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection,
                       OutputMetadata* consumed, OutputMetadata* response) override {
    const uint64_t id = impl_->Identify(connection, slot_);
    if (inner_ == nullptr) {
      const bool has_certificate = !connection->GetPeerIdentity().empty() ||
                                   !connection->FindPropertyValues("x509_pem_cert").empty();
      impl_->Answered(id, has_certificate ? Answer::kLogsIn : Answer::kTellsNothing);
      return grpc::Status::OK;
    }
    const grpc::Status status = inner_->Process(metadata, connection, consumed, response);
    const auto path = metadata.find(":path");
    // Answered to everybody, so it shows nothing.
    const bool health = path != metadata.end() && path->second.starts_with("/grpc.health.");
    impl_->Answered(id, !status.ok() ? Answer::kRefused
                        : health     ? Answer::kTellsNothing
                                     : Answer::kLogsIn);
    return status;
  }

 private:
  using Answer = Impl::Answer;
  const std::shared_ptr<Impl> impl_;
  const int slot_;
  const std::shared_ptr<grpc::AuthMetadataProcessor> inner_;
};

// ---- the whole ----

Acceptor::Acceptor(const ConnectionLimits& limits) : impl_(std::make_shared<Impl>(limits)) {}

Acceptor::~Acceptor() {
  Stop();
  {
    absl::MutexLock lock(&impl_->giving);
    impl_->giving.Await(impl_->NoGivers());
  }
  impl_->doors.clear();  // they keep the credentials, whose processors keep them
}

void Acceptor::AddTo(grpc::ServerBuilder* builder, const Credentials& credentials,
                     const std::shared_ptr<grpc::AuthMetadataProcessor>& processor) {
  using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  MP_CHECK(credentials.size() == static_cast<size_t>(std::max(1, impl_->slots)));
  for (size_t slot = 0; slot < credentials.size(); ++slot) {
    if (impl_->slots > 0) {
      credentials[slot]->SetAuthMetadataProcessor(
          std::make_shared<Processor>(impl_, static_cast<int>(slot), processor));
    }
    impl_->doors.push_back(builder->experimental().AddExternalConnectionAcceptor(
        External::FROM_FD, credentials[slot]));
  }
}

absl::StatusOr<int> Acceptor::Listen(const std::string& host, int port) {
  Impl& impl = *impl_;
  if (!impl.epoll.ok() || !impl.wake_up.ok()) {
    return absl::UnavailableError("there is no descriptor to wait for connections with");
  }
  MP_ASSIGN_OR_RETURN(impl.listeners, ListenOn(host, &port));
  if (impl.slots == 0) {  // without TLS
    MP_ASSIGN_OR_RETURN(UniqueFd local, ListenLocally(absl::StrCat(host, ":", port)));
    if (local.ok()) impl.listeners.push_back(std::move(local));
  }
  impl.Watch(impl.wake_up.get(), kWakeUp, EPOLLIN);
  for (size_t i = 0; i < impl.listeners.size(); ++i) {
    impl.Watch(impl.listeners[i].get(), kListener | i, EPOLLIN);
  }
  impl.thread = std::thread([&impl] { impl.Run(); });
  return port;
}

std::function<void()> Acceptor::Answering(const grpc::ServerContextBase& context) {
  const uint64_t id = MarkOf(*context.auth_context()).value_or(0);
  if (id == 0) return [] {};  // without TLS, or it has ended
  const uint64_t answer = impl_->table.AnswerBegins(id, SteadyNow());
  return [impl = impl_, id, answer] { impl->table.AnswerEnds(id, answer); };
}

void Acceptor::Stop() {
  if (!impl_->thread.joinable()) return;
  impl_->stopping = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t size = write(impl_->wake_up.get(), &one, sizeof one);
  impl_->thread.join();
  impl_->listeners.clear();
  impl_->EndGiving();
}

void Acceptor::CutAll() {
  absl::MutexLock lock(&impl_->mutex);
  for (const auto& [id, socket] : impl_->sockets) Abort(socket.fd.get());
}

size_t Acceptor::connections() const { return impl_->table.size(); }

}  // namespace milepost::coordinator
