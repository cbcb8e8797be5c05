#include "common/subprocess.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace milepost {
namespace {

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

std::string ReadAll(const UniqueFd& fd) {
  std::string text;
  char buffer[4096];
  ssize_t bytes;
  while ((bytes = read(fd.get(), buffer, sizeof buffer)) > 0) text.append(buffer, bytes);
  return text;
}

SpawnOptions Shell(const std::string& script) {
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

TEST(SubprocessTest, ReportsExitCodesAndSignals) {
  auto three = Subprocess::Spawn(Shell("exit 3"));
  ASSERT_TRUE(three.ok()) << three.status();
  auto end = three->Wait(Soon());
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->exit_code, 3);
  EXPECT_EQ(end->ToString(), "exit code 3");
  EXPECT_EQ(three->Wait()->exit_code, 3);  // again

  auto killed = Subprocess::Spawn(Shell("kill -SEGV $$"));
  ASSERT_TRUE(killed.ok());
  end = killed->Wait(Soon());
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->signal, SIGSEGV);
}

TEST(SubprocessTest, WaitGivesUpAtTheDeadlineAndSignalEndsTheChild) {
  auto child = Subprocess::Spawn(Shell("exec sleep 1000"));
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->Wait(absl::InfinitePast()).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(child->Signal(SIGTERM).ok());
  auto end = child->Wait(Soon());
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(end->signal, SIGTERM);
  EXPECT_TRUE(child->Signal(SIGTERM).ok());
}

TEST(SubprocessTest, DestructorLeavesNoProcess) {
  pid_t pid;
  {
    auto child = Subprocess::Spawn(Shell("exec sleep 1000"));
    ASSERT_TRUE(child.ok());
    pid = child->pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(SubprocessTest, ConnectsPipesAndEnvironment) {
  setenv("MILEPOST_TEST_REPLACED", "old", 1);
  SpawnOptions options = Shell("read line; echo \"$line $MILEPOST_TEST_REPLACED\"; echo oops >&2");
  options.env = {{"MILEPOST_TEST_REPLACED", "new"}};
  options.in = Redirect::Pipe();
  options.out = Redirect::Pipe();
  options.err = Redirect::Pipe();
  auto child = Subprocess::Spawn(options);
  ASSERT_TRUE(child.ok());
  {
    UniqueFd in = child->TakeIn();
    ASSERT_EQ(write(in.get(), "hello\n", 6), 6);
  }
  EXPECT_EQ(ReadAll(child->TakeOut()), "hello new\n");
  EXPECT_EQ(ReadAll(child->TakeErr()), "oops\n");
  EXPECT_TRUE(child->Wait(Soon())->success());
}

TEST(SubprocessTest, GivesOnlyTheNamedDescriptors) {
  UniqueFd leaked(open("/dev/null", O_RDONLY));  // not close-on-exec
  ASSERT_TRUE(leaked.ok());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  SpawnOptions options = Shell("echo through >&5; exec ls /proc/self/fd");
  options.out = Redirect::Pipe();
  options.fds = {{5, write_end.get()}};
  auto child = Subprocess::Spawn(options);
  ASSERT_TRUE(child.ok());
  write_end.Reset();
  // 3 is the folder that ls has open.
  EXPECT_EQ(ReadAll(child->TakeOut()), "0\n1\n2\n3\n5\n");
  EXPECT_TRUE(child->Wait(Soon())->success());
  EXPECT_EQ(ReadAll(read_end), "through\n");
}

TEST(SubprocessTest, SwapsDescriptors) {
  int a[2], b[2];
  ASSERT_EQ(pipe2(a, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(b, O_CLOEXEC), 0);
  // Ours are moved first, so that each may take the other's number.
  ASSERT_LT(b[1], 64);
  SpawnOptions options =
      Shell("echo one >&" + std::to_string(b[1]) + "; echo two >&" + std::to_string(a[1]));
  options.fds = {{b[1], a[1]}, {a[1], b[1]}};
  auto child = Subprocess::Spawn(options);
  ASSERT_TRUE(child.ok()) << child.status();
  close(a[1]);
  close(b[1]);
  EXPECT_EQ(ReadAll(UniqueFd(a[0])), "one\n");
  EXPECT_EQ(ReadAll(UniqueFd(b[0])), "two\n");
}

TEST(SubprocessTest, AppendsToFiles) {
  std::string folder = testing::TempDir() + "subprocess_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  for (int i = 0; i < 2; ++i) {
    SpawnOptions options = Shell("echo line");
    options.out = Redirect::File(folder + "/log");
    auto child = Subprocess::Spawn(options);
    ASSERT_TRUE(child.ok());
    EXPECT_TRUE(child->Wait(Soon())->success());
  }
  std::stringstream text;
  text << std::ifstream(folder + "/log").rdbuf();
  EXPECT_EQ(text.str(), "line\nline\n");
  std::filesystem::remove_all(folder);
}

TEST(SubprocessTest, PinsCores) {
  cpu_set_t ours;
  ASSERT_EQ(sched_getaffinity(0, sizeof ours, &ours), 0);
  int core = 0;
  while (!CPU_ISSET(core, &ours)) ++core;
  SpawnOptions options = Shell("grep Cpus_allowed_list /proc/self/status");
  options.out = Redirect::Pipe();
  options.cores = {core};
  auto child = Subprocess::Spawn(options);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(ReadAll(child->TakeOut()), "Cpus_allowed_list:\t" + std::to_string(core) + "\n");
}

TEST(SubprocessTest, NamesWhatCannotRun) {
  SpawnOptions options;
  options.argv = {"/nonexistent/binary"};
  auto child = Subprocess::Spawn(options);
  EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(child.status().message().find("/nonexistent/binary"), std::string::npos);

  options = Shell("true");
  options.out = Redirect::File("/nonexistent/log");
  child = Subprocess::Spawn(options);
  EXPECT_NE(child.status().message().find("/nonexistent/log"), std::string::npos);
}

// Runs in a process of its own: spawns from a thread that ends, then waits.
void SpawnFromAThreadThatEnds() {
  std::thread([] {
    auto child = Subprocess::Spawn(Shell("echo up; exec sleep 1000"));
    if (child.ok()) new Subprocess(*std::move(child));  // never reaped
  }).join();
  pause();
}

TEST(SubprocessTest, DiesWithTheProcessNotWithTheThread) {
  if (getenv("MILEPOST_TEST_SPAWN") != nullptr) return SpawnFromAThreadThatEnds();
  SpawnOptions options;
  options.argv = {"/proc/self/exe", "--gtest_filter=*DiesWithTheProcessNotWithTheThread"};
  options.env = {{"MILEPOST_TEST_SPAWN", "1"}};
  options.out = Redirect::Pipe();
  auto parent = Subprocess::Spawn(options);
  ASSERT_TRUE(parent.ok()) << parent.status();
  UniqueFd out = parent->TakeOut();
  std::string seen;
  char byte;
  while (seen.find("up\n") == std::string::npos) {
    ASSERT_EQ(read(out.get(), &byte, 1), 1) << seen;  // the end: killed with its thread
    seen += byte;
  }
  EXPECT_FALSE(parent->Wait(absl::InfinitePast()).ok());
  ASSERT_TRUE(parent->Signal(SIGKILL).ok());
  ReadAll(out);  // ends only when the grandchild has closed its stdout too
}

TEST(SubprocessTest, AMemoryNodeIsPreferredWhereThatIsAllowed) {
  SpawnOptions options = Shell("grep -m 1 . /proc/self/numa_maps");
  options.out = Redirect::Pipe();
  options.memory_node = 0;
  auto child = Subprocess::Spawn(std::move(options));
  ASSERT_TRUE(child.ok()) << child.status();
  const UniqueFd out = child->TakeOut();
  const std::string text = ReadAll(out);
  const unsigned long node0 = 1;
  const bool allowed = syscall(SYS_set_mempolicy, MPOL_PREFERRED, &node0, 64UL) == 0;
  syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0UL);
  if (allowed && !text.empty()) {
    EXPECT_NE(text.find(" prefer:0"), std::string::npos) << text;
  }
}

// What the kernel takes as "whoever writes this". What cannot be joined does not matter.
TEST(SubprocessTest, JoinsControlGroupsBeforeItRuns) {
  const std::string path = testing::TempDir() + "/joins-" + std::to_string(getpid());
  std::ofstream(path) << "";
  SpawnOptions options = Shell("cat " + path);
  options.cgroup_files = {path + "-absent", path};
  options.out = Redirect::Pipe();
  auto child = Subprocess::Spawn(std::move(options));
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(ReadAll(child->TakeOut()), "0");
  EXPECT_TRUE(child->Wait(Soon())->success());
  std::filesystem::remove(path);
}

TEST(SubprocessTest, AMemoryNodeThatIsNotThereIsNoReasonToFail) {
  SpawnOptions options = Shell("exit 4");
  options.memory_node = 1000;
  auto child = Subprocess::Spawn(std::move(options));
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->Wait(Soon())->exit_code, 4);
}

}  // namespace
}  // namespace milepost
