#include "server/s3/xml.h"

#include <gtest/gtest.h>

#include <random>

namespace ovq::s3 {
namespace {

TEST(Xml, ReadsAList) {
  const absl::StatusOr<XmlElement> list = ParseXml(
      "<?xml version=\"1.0\"?>\n<!-- a > b -->\n"
      "<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>\n"
      "  "
      "<Contents><Key>a&amp;b&lt;&#x41;&#66;&#228;&#x20AC;&#x1F600;</"
      "Key><ETag>&quot;e&apos;&quot;</ETag></Contents>\n"
      "  <s3:Contents a=\"x>y\"><Key> c </Key></s3:Contents><Empty/><Also  ></Also >\n"
      "</ListBucketResult>\n");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->name, "ListBucketResult");
  ASSERT_EQ(list->children.size(), 4u);
  EXPECT_EQ(list->children[0].ChildText("Key"), "a&b<AB\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(list->children[0].ChildText("ETag"), "\"e'\"");
  EXPECT_EQ(list->children[1].name, "Contents");
  EXPECT_EQ(list->children[1].ChildText("Key"), "c");
  EXPECT_EQ(list->Child("Missing"), nullptr);
  EXPECT_EQ(list->ChildText("Missing"), "");
}

TEST(Xml, RefusesWhatIsNone) {
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "<a>";
  for (const std::string& text : {std::string(),
                                  std::string("text"),
                                  std::string("<a>"),
                                  std::string("<a></b>"),
                                  std::string("<a>&nbsp;</a>"),
                                  std::string("<a>&#xD800;</a>"),
                                  std::string("<a>&#0;</a>"),
                                  std::string("<a>&#+65;</a>"),
                                  std::string("<a>&#x 41;</a>"),
                                  std::string("<a>&#;</a>"),
                                  std::string("<a>&amp</a>"),
                                  std::string("<a b></a>"),
                                  std::string("<a b=c></a>"),
                                  std::string("<a/><b/>"),
                                  std::string("<!DOCTYPE a><a/>"),
                                  std::string("<a><!-- </a>"),
                                  std::string("<a/"),
                                  std::string("<"),
                                  std::string("< a/>"),
                                  deep}) {
    EXPECT_TRUE(absl::IsDataLoss(ParseXml(text).status())) << text.substr(0, 40);
  }
}

TEST(Xml, EndsOnAnyBytes) {
  std::mt19937 random(3);
  const std::string pieces[] = {"<", ">",    "a",   "/",  "&",  ";", "=",    "\"",  "'",
                                "#", "<!--", "-->", "<?", "?>", " ", "</a>", "<a>", "&amp;"};
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += pieces[random() % std::size(pieces)];
    (void)ParseXml(text);
  }
}

}  // namespace
}  // namespace ovq::s3
