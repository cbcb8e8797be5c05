// A disk that is really full: a small tmpfs, mounted in a child process where that is allowed.
#include "coordinator/store/store_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "coordinator/core/decide.h"

namespace milepost::coordinator {
namespace {

constexpr int kNotAllowed = 77;
constexpr int kMib = 1 << 20;

class FullDiskTest : public StoreFixture {
 protected:
  // Runs `scenario` in a child on a file system of `mib` MiB at dir_ that nobody else sees.
  template <typename Scenario>
  void RunOnSmallDisk(int mib, Scenario scenario) {
    const pid_t child = fork();
    if (child == 0) {
      const std::string size = "size=" + std::to_string(mib) + "m";
      if (unshare(CLONE_NEWNS) != 0 ||
          mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          mount("none", dir_.c_str(), "tmpfs", 0, size.c_str()) != 0) {
        _exit(kNotAllowed);
      }
      scenario();
      store_.reset();
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) {
      GTEST_SKIP() << "mounting a tmpfs is not allowed here";
    }
    EXPECT_EQ(status, 0) << "the child failed or died; its messages are above";
  }

  // Fills the disk to the last page.
  void Fill() {
    const int fd = open((dir_ + "/fill").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const std::string page(4096, 'x');
    while (write(fd, page.data(), page.size()) > 0) {
    }
    close(fd);
  }
  void Free() { std::remove((dir_ + "/fill").c_str()); }

  static Outcome Submit(const State& state, const std::string& name) {
    JobSubmitted event{.request_id = "r", .uid = "u"};
    event.spec.set_name(name);
    return Decide(state, event, absl::FromUnixSeconds(1), {});
  }
};

TEST_F(FullDiskTest, StreamFailsItsSpaceIsFreedAndTheNextSaveWorks) {
  RunOnSmallDisk(80, [&] {
    options_.free_bytes = [](const std::string&) { return uint64_t{1} << 40; };  // wrong, too late
    Open();
    const std::string good = Commit(1);
    const int chunks = 24;
    const std::string name = *checkpoints().Begin(Request(2, 1, int64_t{chunks} * kMib));
    std::vector<v1::Chunk> data = {MakeChunk(0, 0, 10, 'w')};
    for (int i = 0; i < chunks; ++i) {
      data.push_back(MakeChunk(1, int64_t{i} * kMib, int64_t{i + 1} * kMib, 'b'));
    }
    const absl::Status status = WriteStream(name, 0, std::move(data));  // 96 MiB
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(StagedFiles(), 0);
    EXPECT_EQ(CommitOpen(name).code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(store_->Write(Submit(State(), "job")).ok());
    const std::string next = Commit(3);
    Open();
    EXPECT_THAT(Names(), ::testing::ElementsAre(next, good));
    auto verified = checkpoints().Verify(good, [] { return false; });
    EXPECT_TRUE(verified.ok() && verified->damaged_chunks().empty());
  });
}

TEST_F(FullDiskTest, RecordsThatCannotBeWrittenAreRefusedAndAcceptedLater) {
  RunOnSmallDisk(80, [&] {
    options_.margin_bytes = kMib;
    Open();
    Fill();
    absl::Status status = store_->Write(Submit(State(), "large"));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_FALSE(checkpoints().Begin(Request(1)).ok());
    Free();
    status = store_->Write(Submit(State(), "small"));
    EXPECT_TRUE(status.ok()) << status;
    Commit(1);
    Open();
    EXPECT_EQ(store_->LoadState()->FindJob(1)->job().spec().name(), "small");
    EXPECT_EQ(Names().size(), 1u);
  });
}

}  // namespace
}  // namespace milepost::coordinator
