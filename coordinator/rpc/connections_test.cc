// What connections and callers can do to a coordinator: floods without a login, descriptors that
// have run out, users of other projects, readers that do not read.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <xxhash.h>

#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/sanitizer.h"
#include "common/unique_fd.h"
#include "coordinator/rpc/raw_link.h"
#include "coordinator/rpc/secure_server.h"
#include "coordinator/store/checkpoint_store.h"

namespace milepost::coordinator {
namespace {

#ifdef MILEPOST_ASAN
constexpr int64_t kMaxGrowth = int64_t{1} << 30;  // it keeps what is freed
#else
constexpr int64_t kMaxGrowth = int64_t{300} << 20;
#endif

// ---- floods ----

const std::string& HeaderBlock() {
  static const std::string* block = new std::string(
      absl::StrCat(Field(":method", "POST"), Field(":scheme", "https"),
                   Field(":path", "/grpc.health.v1.Health/Check"), Field(":authority", "x"),
                   Field("te", "trailers"), Field("content-type", "application/grpc")));
  return *block;
}
// The same again, by their numbers in the table.
const char kSameAgain[] = "\xc3\xc2\xc1\xc0\xbf\xbe";

using Batch = std::function<std::string(uint32_t first_stream)>;

std::string HeadersFlood(uint32_t stream) {
  return Frame(kHeaders, kEndHeaders, stream, stream == 1 ? HeaderBlock() : kSameAgain);
}
std::string ResetFlood(uint32_t stream) {
  return absl::StrCat(HeadersFlood(stream), Frame(kReset, 0, stream, std::string("\0\0\0\x08", 4)));
}
std::string ContinuationFlood(uint32_t stream) {
  if (stream == 1) return Frame(kHeaders, 0, 1, HeaderBlock());
  std::string fields;
  for (int i = 0; i < 100; ++i)
    fields += absl::StrCat(std::string("\0\1x\x64", 4), std::string(100, 'y'));
  return Frame(kContinuation, 0, 1, fields);
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * getpagesize();
}

class ConnectionsTest : public SecureServerTest {
 protected:
  ConnectionsTest() { signal(SIGPIPE, SIG_IGN); }

  void Revoke(const std::string& name) {
    grpc::ClientContext context;
    v1::RevokeTokenRequest request;
    request.set_name(name);
    v1::Token token;
    ASSERT_TRUE(v1::AuthService::NewStub(MakeChannel(User(AdminToken())))
                    ->RevokeToken(&context, request, &token)
                    .ok());
  }
  // Once a call succeeds, or it has not for long.
  std::string AwaitCall(const Endpoint& who) {
    const absl::Time deadline = absl::Now() + kPatience;
    grpc::Status status;
    do {
      status = WhoAmI(who);
    } while (!status.ok() && absl::Now() < deadline);
    return status.error_message();
  }

  // Every connection that floods is cut, whatever it sends; what it sent is not kept; others go on.
  void Flood(const Batch& batch) {
    Start();
    ASSERT_TRUE(WhoAmI(User(AdminToken())).ok());
    const int64_t before = ResidentBytes();
    for (int round = 0; round < 5; ++round) {
      RawLink link(server_->address());
      ASSERT_TRUE(link.ok());
      const absl::Time deadline = absl::Now() + kPatience;
      uint32_t stream = 1;
      bool sending = true;
      while (sending && absl::Now() < deadline) {
        std::string bytes;
        for (int i = 0; i < 20; ++i, stream += 2) bytes += batch(stream);
        sending = link.Send(bytes);
      }
      ASSERT_FALSE(sending) << "it still takes what is sent, " << stream / 2 << " streams";
    }
    EXPECT_LT(ResidentBytes() - before, kMaxGrowth);
    EXPECT_EQ(AwaitCall(User(AdminToken())), "");
    EXPECT_EQ(AwaitCall(Worker("a")), "");
  }
};

TEST_F(ConnectionsTest, AFloodOfHeadersIsCut) { Flood(HeadersFlood); }
TEST_F(ConnectionsTest, AFloodOfHeadersAndResetsIsCut) { Flood(ResetFlood); }
TEST_F(ConnectionsTest, EndlessContinuationIsCut) { Flood(ContinuationFlood); }

TEST_F(ConnectionsTest, WhoNeverLogsInIsCutInTime) {
  Start();
  RawLink link(server_->address());
  ASSERT_TRUE(link.ok());
  EXPECT_TRUE(link.AwaitEnd());
}

// A first call that has much to say, and one that waits long.
TEST_F(ConnectionsTest, WhoLogsInIsNotCut) {
  Start();
  v1::SubmitJobRequest request = Request("p");
  request.mutable_labels()->insert({"x", std::string(4 << 20, 'x')});
  v1::Job job;
  EXPECT_EQ(Submit(User(AdminToken()), request, &job).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_TRUE(Submit(User(AdminToken()), Request("p"), &job).ok());
  const auto channel = MakeChannel(User(AdminToken()));
  grpc::ClientContext context;
  v1::GetJobRequest named;
  named.set_name(job.name());
  auto stream = v1::JobService::NewStub(channel)->WatchJob(&context, named);
  ASSERT_TRUE(stream->Read(&job));
  RawLink idle(server_->address());
  ASSERT_TRUE(idle.AwaitEnd()) << "by when the watch has lasted as long as a login may take";
  EXPECT_EQ(channel->GetState(false), GRPC_CHANNEL_READY);
  context.TryCancel();
}

TEST_F(ConnectionsTest, WhoseTokenIsRevokedIsAStrangerAgain) {
  Start();
  const v1::CreateTokenResponse viewer = MakeToken({{"p", v1::ROLE_VIEWER}});
  RawLink link(server_->address());
  ASSERT_TRUE(link.Send(WhoAmICall(viewer.secret(), 1)));
  ASSERT_TRUE(link.Await(viewer.token().name()));
  Revoke(viewer.token().name());
  for (uint32_t stream = 3; stream < 400; stream += 2) {
    if (!link.Send(WhoAmICall(viewer.secret(), stream))) break;
  }
  EXPECT_TRUE(link.AwaitEnd());
}

// ---- descriptors ----

// Every descriptor that this process may still have.
std::vector<UniqueFd> UseUpDescriptors() {
  std::vector<UniqueFd> all;
  while (true) {
    UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd.ok()) return all;
    all.push_back(std::move(fd));
  }
}

class DescriptorsTest : public ConnectionsTest {
 protected:
#ifdef MILEPOST_ASAN
  void SetUp() override {
    GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors to look at an object's type";
  }
#endif
  // A connection that comes when there is no descriptor left; then there are again.
  void RunOutAndRecover() {
    rlimit before = {};
    getrlimit(RLIMIT_NOFILE, &before);
    const rlimit low = {.rlim_cur = 400, .rlim_max = before.rlim_max};
    const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience = {.tv_sec = 10, .tv_usec = 0};
    setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setrlimit(RLIMIT_NOFILE, &low);
    std::vector<UniqueFd> all = UseUpDescriptors();
    ASSERT_TRUE(Connect(client.get(), server_->address()));
    char byte = 0;
    const ssize_t size = read(client.get(), &byte, 1);
    EXPECT_TRUE(size == 0 || errno == ECONNRESET) << "it is left waiting";
    all.clear();
    setrlimit(RLIMIT_NOFILE, &before);
  }
};

TEST_F(DescriptorsTest, ACoordinatorThatHadNoneListensAgain) {
  Start();
  RunOutAndRecover();
  EXPECT_EQ(AwaitCall(User(AdminToken())), "");
}

TEST_F(DescriptorsTest, AlsoOnLoopback) {
  options_.tls_dir = "";
  Start();
  RunOutAndRecover();
  EXPECT_EQ(AwaitCall(Endpoint(server_->address())), "");
}

// ---- users ----

TEST_F(ConnectionsTest, AUserOfAnotherProjectIsSomebodyElse) {
  options_.limits.calls_per_second = 0.001;
  options_.limits.burst = 2;
  Start();
  // All are "somebody", whom an admin of p has named.
  const Endpoint first = With("p", v1::ROLE_VIEWER);
  const Endpoint second = With("p", v1::ROLE_ADMIN);
  EXPECT_EQ(WhoAmI(first).error_message(), "");
  EXPECT_EQ(WhoAmI(second).error_message(), "");
  EXPECT_EQ(WhoAmI(first).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ConnectionsTest, AProjectsAdminUsesUpNobodyElsesLimits) {
  options_.limits.calls_per_second = 0.001;
  options_.limits.burst = 2;
  Start();
  const Endpoint forged = With("p", v1::ROLE_ADMIN);
  const v1::CreateTokenResponse genuine = MakeToken({{"q", v1::ROLE_VIEWER}});
  while (WhoAmI(forged).ok()) continue;
  EXPECT_EQ(WhoAmI(User(genuine.secret())).error_message(), "");
}

// ---- readers ----

class ReadersTest : public ConnectionsTest {
 protected:
  static constexpr int kChunks = 32;
  static constexpr int64_t kElements = 1 << 20;

  // Of the job, so large that it does not fit into what lies between a stream's two ends.
  std::string LargeCheckpoint(const std::string& job, int64_t step) {
    CheckpointStore& store = server_->coordinator().store().checkpoints();
    v1::BeginCheckpointRequest begin;
    begin.set_job(job);
    begin.set_generation(1);
    begin.set_step(step);
    begin.set_streams(1);
    v1::TensorInfo* tensor = begin.add_tensors();
    tensor->set_name("w");
    tensor->set_kind("master");
    tensor->set_dtype("F32");
    tensor->add_shape(kChunks * kElements);
    begin.set_bytes(kChunks * kElements * 4);
    begin.mutable_state()->set_step(step);
    const auto name = store.Begin(begin);
    EXPECT_TRUE(name.ok()) << name.status();
    auto stream = store.OpenStream(*name, 1, 0);
    for (int i = 0; i < kChunks; ++i) {
      v1::Chunk chunk;
      chunk.set_begin(i * kElements);
      chunk.set_end((i + 1) * kElements);
      chunk.set_data(std::string(kElements * 4, 'x'));
      chunk.set_xxh3(XXH3_64bits(chunk.data().data(), chunk.data().size()));
      EXPECT_TRUE((*stream)->Append(std::move(chunk)).ok());
    }
    EXPECT_TRUE((*stream)->Finish().ok());
    EXPECT_TRUE(store.Prepare(*name, absl::Now())->Publish().ok());
    return *name;
  }
  grpc::Status Delete(const std::string& name) {
    grpc::ClientContext context;
    v1::DeleteCheckpointRequest request;
    request.set_name(name);
    v1::DeleteCheckpointResponse response;
    return v1::CheckpointService::NewStub(MakeChannel(User(AdminToken())))
        ->DeleteCheckpoint(&context, request, &response);
  }
};

TEST_F(ReadersTest, RevokingEndsAReadThatStandsStill) {
  Start();
  v1::Job job;
  ASSERT_TRUE(Submit(User(AdminToken()), Request("p"), &job).ok());
  const std::string older = LargeCheckpoint(job.name(), 1);
  LargeCheckpoint(job.name(), 2);
  const v1::CreateTokenResponse viewer = MakeToken({{"p", v1::ROLE_VIEWER}});
  auto stub = v1::CheckpointService::NewStub(MakeChannel(User(viewer.secret())));
  grpc::ClientContext reading;
  v1::ReadChunksRequest request;
  request.set_name(older);
  auto stream = stub->ReadChunks(&reading, request);
  v1::Chunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  EXPECT_EQ(ReasonOf(FromGrpcStatus(Delete(older))), v1::ERROR_REASON_CHECKPOINT_IN_USE);
  Revoke(viewer.token().name());
  const absl::Time deadline = absl::Now() + kPatience / 2;
  grpc::Status deleted;
  do {
    deleted = Delete(older);
  } while (!deleted.ok() && absl::Now() < deadline);
  EXPECT_TRUE(deleted.ok()) << deleted.error_message();
  reading.TryCancel();
  while (stream->Read(&chunk)) continue;
  EXPECT_FALSE(stream->Finish().ok());
}

}  // namespace
}  // namespace milepost::coordinator
