#include "common/files/ignore_rules.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/files/file_tree.h"

namespace milepost {
namespace {

bool Ignored(absl::string_view rules, absl::string_view path, bool is_folder = false) {
  IgnoreRules all;
  all.Add("", rules);
  return all.Ignores(path, is_folder);
}

TEST(IgnoreRulesTest, NamesAndPaths) {
  EXPECT_TRUE(Ignored("*.pt\n", "a/b/model.pt"));
  EXPECT_FALSE(Ignored("*.pt\n", "a/b/model.pth"));
  EXPECT_FALSE(Ignored("/a.txt\n", "b/a.txt"));
  EXPECT_TRUE(Ignored("/a.txt\n", "a.txt"));
  EXPECT_TRUE(Ignored("b/a.txt\n", "b/a.txt"));
  EXPECT_FALSE(Ignored("b/a.txt\n", "c/b/a.txt"));
  EXPECT_FALSE(Ignored("data/\n", "data"));
  EXPECT_TRUE(Ignored("data/\n", "x/data", /*is_folder=*/true));
  EXPECT_FALSE(Ignored("a*b\n/x*y\n", "x/y"));
}

TEST(IgnoreRulesTest, AnyFolders) {
  for (const char* path : {"a/b", "a/x/b", "a/x/y/b"}) EXPECT_TRUE(Ignored("a/**/b", path)) << path;
  EXPECT_TRUE(Ignored("**/b", "b"));
  EXPECT_TRUE(Ignored("**/b", "a/x/b"));
  EXPECT_TRUE(Ignored("a/**", "a/x/y"));
  EXPECT_FALSE(Ignored("a/**", "a", /*is_folder=*/true));
  const std::string many = absl::StrJoin(std::vector<std::string>(40, "**"), "/a/");
  EXPECT_FALSE(
      Ignored(absl::StrCat(many, "/b"), absl::StrJoin(std::vector<std::string>(200, "a"), "/")))
      << "and soon";
}

TEST(IgnoreRulesTest, TheLastOneCountsAndInnerOnesComeLater) {
  EXPECT_FALSE(Ignored("*.pt\n!best.pt\n", "best.pt"));
  EXPECT_TRUE(Ignored("!best.pt\n*.pt\n", "best.pt"));
  IgnoreRules rules;
  rules.Add("", "*.txt\n");
  rules.Add("data", "!keep.txt\n/here\n");
  EXPECT_FALSE(rules.Ignores("data/keep.txt", false));
  EXPECT_TRUE(rules.Ignores("keep.txt", false));
  EXPECT_TRUE(rules.Ignores("database/keep.txt", false));
  EXPECT_TRUE(rules.Ignores("data/here", false));
  EXPECT_FALSE(rules.Ignores("data/x/here", false));
}

TEST(IgnoreRulesTest, LinesAsGitReadsThem) {
  EXPECT_FALSE(Ignored("# a\n\n   \n", "# a"));
  EXPECT_TRUE(Ignored("\\#a\n", "#a"));
  EXPECT_TRUE(Ignored("\\!a\n", "!a"));
  EXPECT_TRUE(Ignored("a  \n", "a"));
  EXPECT_TRUE(Ignored("a\\ \n", "a "));
  EXPECT_TRUE(
      Ignored("\xEF\xBB\xBF"
              "a\r\nb",
              "a"));
  EXPECT_TRUE(Ignored("a\r\nb", "b"));
}

TEST(IgnoreRulesTest, Brackets) {
  EXPECT_TRUE(FitsGlob("[a-c]x", "bx"));
  EXPECT_FALSE(FitsGlob("[!a-c]x", "bx"));
  EXPECT_TRUE(FitsGlob("[^a-c]x", "dx"));
  EXPECT_TRUE(FitsGlob("[]]", "]"));
  EXPECT_TRUE(FitsGlob("[]-a]", "^"));
  EXPECT_TRUE(FitsGlob("[a-]", "-"));
  EXPECT_TRUE(FitsGlob("[\\]]", "]"));
  EXPECT_TRUE(FitsGlob("[[:digit:]x]*", "7a"));
  EXPECT_FALSE(FitsGlob("[[:none:]]", "n"));
  EXPECT_FALSE(FitsGlob("[ab", "a"));
  EXPECT_FALSE(FitsGlob("a\\", "a"));
  EXPECT_TRUE(FitsGlob("*a*b?", "xxaybz"));
  EXPECT_FALSE(
      FitsGlob(absl::StrJoin(std::vector<std::string>(60, "*a"), "") + "b", std::string(250, 'a')))
      << "and soon";
}

// ---- the same as git ----

std::string RandomPattern(std::mt19937* random) {
  const std::vector<std::string> pieces = {"a", "b",  "c",  "*",  "?",    "**", "/",   "/",
                                           "a", "ab", "*a", "b*", "[ab]", "!b", "\\a", "[!a]"};
  std::uniform_int_distribution<size_t> piece(0, pieces.size() - 1);
  std::uniform_int_distribution<int> length(1, 5);
  std::string pattern;
  for (int left = length(*random); left > 0; --left) pattern += pieces[piece(*random)];
  if ((*random)() % 5 == 0) pattern.insert(0, "!");
  if ((*random)() % 5 == 0) pattern += "/";
  return pattern;
}

// What a walk does: nothing in an ignored folder is looked at.
bool IgnoredOnTheWay(const IgnoreRules& rules, const std::string& path, bool is_folder) {
  for (size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (rules.Ignores(path.substr(0, slash), true)) return true;
  }
  return rules.Ignores(path, is_folder);
}

TEST(IgnoreRulesTest, TheSameAsGit) {
  if (std::system("git --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "git is not there";
  const FileTree tree;
  std::mt19937 random(7);
  const std::vector<std::string> names = {"a", "b", "c", "ab", "ba"};
  std::vector<std::string> paths;
  for (const std::string& one : names) {
    for (const std::string& two : names) {
      for (const std::string& three : names) {
        paths.push_back(absl::StrCat(one, "/", two, "/", three));
      }
    }
  }
  for (const std::string& path : paths) tree.Write("repo/" + path, "");
  ASSERT_EQ(std::system(absl::StrCat("git init -q ", tree.Path("repo")).c_str()), 0);
  std::vector<std::string> asked = paths;
  std::set<std::string> folders;
  for (const std::string& path : paths) {
    folders.insert(path.substr(0, path.find('/')));
    folders.insert(path.substr(0, path.rfind('/')));
  }
  asked.insert(asked.end(), folders.begin(), folders.end());
  for (int round = 0; round < 150; ++round) {
    std::string text, inner;
    for (int i = 0; i < 3; ++i) text += RandomPattern(&random) + "\n";
    for (int i = 0; i < 2; ++i) inner += RandomPattern(&random) + "\n";
    tree.Write("repo/.gitignore", text);
    tree.Write("repo/a/.gitignore", inner);
    IgnoreRules rules;
    rules.Add("", text);
    rules.Add("a", inner);
    tree.Write("names", absl::StrJoin(asked, "\n") + "\n");
    const std::string command = absl::StrCat(
        "cd ", tree.Path("repo"), " && GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 ",
        "git check-ignore --no-index --stdin <../names >../ignored");
    if (std::system(command.c_str()) < 0) FAIL() << "no shell";  // 1: it names none
    const std::set<std::string> by_git =
        absl::StrSplit(tree.Read("ignored"), '\n', absl::SkipEmpty());
    for (const std::string& path : asked) {
      ASSERT_EQ(IgnoredOnTheWay(rules, path, folders.count(path) > 0), by_git.count(path) > 0)
          << path << " with:\n"
          << text << "and in a:\n"
          << inner;
    }
  }
}

}  // namespace
}  // namespace milepost
