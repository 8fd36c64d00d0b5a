#include "server/http/console_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

#include "server/http/console/files.h"

namespace ovq::server {
namespace {

using testing::Contains;
using testing::Pair;

HttpRequest Get(std::string target, HttpHeaders headers = {}) {
  HttpRequest request;
  request.method = "GET";
  request.target = std::move(target);
  request.headers = std::move(headers);
  return request;
}

TEST(ConsolePage, FilesAreThere) {
  const std::optional<HttpReply> page = ConsoleReply(Get("/"));
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->content_type, "text/html; charset=utf-8");
  EXPECT_TRUE(page->body.starts_with("<!doctype html>"));
  EXPECT_EQ(ConsoleReply(Get("/index.html?from=here"))->body, page->body);
  EXPECT_EQ(ConsoleReply(Get("/main.js"))->content_type, "text/javascript; charset=utf-8");
  for (const char* other : {"/none.js", "/console/main.js", "/../main.js", "//", "main.js", ""}) {
    EXPECT_FALSE(ConsoleReply(Get(other))) << other;
  }
}

TEST(ConsolePage, WhoHasAFileGetsNoneAgain) {
  const HttpReply first = *ConsoleReply(Get("/style.css"));
  const auto etag =
      std::ranges::find(first.headers, "ETag", [](auto& header) { return header.first; });
  ASSERT_NE(etag, first.headers.end());
  for (const std::string& known : {etag->second, "\"old\", W/" + etag->second, std::string("*")}) {
    const HttpReply again = *ConsoleReply(Get("/style.css", {{"if-none-match", known}}));
    EXPECT_EQ(again.status, 304) << known;
    EXPECT_EQ(again.body, "");
    EXPECT_THAT(again.headers, Contains(Pair("ETag", etag->second)));
  }
  EXPECT_EQ(ConsoleReply(Get("/style.css", {{"if-none-match", "\"old\""}}))->status, 200);
  EXPECT_NE(ConsoleReply(Get("/colors.css"))->headers, first.headers);
}

TEST(ConsolePage, ABrowserMayReachThisServerAlone) {
  for (const ConsoleFile& file : ConsoleFiles()) {
    const HttpReply reply = *ConsoleReply(Get("/" + std::string(file.name)));
    EXPECT_THAT(reply.headers, Contains(Pair("Content-Security-Policy",
                                             testing::HasSubstr("default-src 'self';"))));
    EXPECT_THAT(reply.headers, Contains(Pair("X-Content-Type-Options", "nosniff")));
    EXPECT_THAT(reply.headers, Contains(Pair("Cache-Control", "no-cache")));
  }
}

TEST(ConsolePage, WhatFilesNameIsThereAndNothingIsFromElsewhere) {
  std::set<std::string> named, there;
  const std::regex reference("(?:src|href|from) ?=? ?\"(?:\\./)?([\\w.]+)\"");
  for (const ConsoleFile& file : ConsoleFiles()) {
    const std::string text(file.bytes);
    there.emplace(file.name);
    for (std::sregex_iterator it(text.begin(), text.end(), reference), end; it != end; ++it) {
      named.insert((*it)[1]);
    }
    std::string rest = std::regex_replace(text, std::regex("http://www\\.w3\\.org/2000/svg"), "");
    EXPECT_FALSE(std::regex_search(rest, std::regex("https?://|//[a-z]+\\.[a-z]"))) << file.name;
    // The policy forbids inline scripts and styles.
    EXPECT_FALSE(std::regex_search(rest, std::regex("<style|<script>| style=\"| on[a-z]+=\"")))
        << file.name;
  }
  named.insert("index.html");
  EXPECT_EQ(named, there);
}

}  // namespace
}  // namespace ovq::server
