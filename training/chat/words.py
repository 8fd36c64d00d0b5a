"""The vocabulary of the scripted conversations."""

NAMES = """Anna Ben Clara David Emma Felix Grace Hugo Iris Jonas Karla Leo Maria Nina Oscar Paula Quinn
Rosa Samuel Tom Ursula Victor Wanda Xenia Yusuf Zoe Alice Bob Carol Daniel Eva Frank Gina Henry Ida Jack
Kim Laura Max Nora Otto Peter Rita Simon Tina Uwe Vera Walter Yara Amir Bao Chen Diego Elif Fatima Goran
Hana Ivan Jana Kofi Luis Mei Noah Olga Priya Ravi Sara Tariq Lena Marco Lisa Paul Julia Martin Ada Alan""".split()
CITIES = """Paris Rome Berlin Madrid London Vienna Prague Oslo Dublin Lisbon Athens Warsaw Budapest Zurich
Geneva Hamburg Munich Milan Naples Lyon Nice Porto Seville Bergen Tokyo Osaka Kyoto Seoul Beijing Shanghai
Delhi Mumbai Cairo Lagos Nairobi Accra Tunis Lima Bogota Quito Santiago Havana Toronto Montreal Boston
Chicago Denver Seattle Austin Dallas Miami Sydney Perth Auckland Bern Basel Ghent Turin Malaga Riga""".split()
COLORS = """red green blue yellow orange purple pink brown black white gray violet teal crimson gold silver
beige turquoise maroon indigo""".split()
FOODS = """pizza pasta soup bread rice cheese apples noodles salad curry sushi tacos pancakes chocolate
cake beans fish potatoes honey grapes mango cherries""".split()
ANIMALS = """cat dog horse cow sheep goat rabbit fox wolf bear lion tiger owl eagle duck goose frog turtle
whale dolphin snake mouse hamster parrot bee""".split()
NOUNS = """house garden river mountain table window door lamp book letter paper engine bridge forest island
market station ticket camera guitar piano violin song picture mirror bottle basket blanket candle castle
cloud corner desert drawer feather field flower ladder lake magnet needle ocean pencil planet pocket rocket
rope sand school shadow shoe spoon star stone storm street summer thunder tower train tree tunnel valley
village wall water wheel winter wood yard year harbor kitchen library museum office""".split()
VERBS = """open close start stop send book order cancel update create delete move copy print lock unlock
check count find show play pause record measure schedule reserve translate convert upload download archive
publish restore rename sort filter merge split encrypt scan ping""".split()
OBJECTS = """lamp door window invoice ticket report order table room meeting song video backup account
message email reminder alarm timer task note printer heater fan camera server database project branch job
package parcel flight hotel taxi contact photo album document folder page channel sensor robot""".split()
ARGUMENTS = """room amount title user target level date day hour color size language subject recipient
priority label source format mode speed count limit region owner topic number status category reason
address channel volume format key code""".split()
ADJECTIVES = """small big old new fast slow warm cold bright dark quiet loud heavy light early late empty
full happy careful clean clear common deep dry easy fresh gentle hard simple soft strong sweet tall thin
wide young""".split()
FILES = """notes todo readme main config test index app data report draft list setup server client utils
helper story poem recipe log settings style script example hello plan letter summary""".split()
EXTENSIONS = "txt md py js json cfg html css yaml toml c rs go sh csv".split()
FOLDERS = "src docs tests lib data scripts app build tools notes".split()
CONDITIONS = "sunny cloudy rainy windy foggy snowy clear stormy".split()

# Words of ordinary prose, for system prompts of any length and for a tokenizer that knows them.
PROSE = """about above according account across act action active add additional after again against agent all
allow allowed almost along already also always among amount an analysis and another answer any anything
appear applies apply approach are around as ask assistant assume at attempt available avoid away back base
based be because become been before begin behavior being below best better between both branch break brief
build but by call called can cannot case cause change changes character check choice choose class clean
clear code come command comment commit common complete concise condition confirm consider contain content
context continue control correct could create current date debug decide default define delete depend
describe description detail determine develop did difference different directly directory discuss display
do document does done down during each edit effect either else empty end enough ensure entire environment
error even event every exact example except execute exist expect explain explanation explicit express
external extra fact fail false feature few field file final find first fix focus follow following for
format found from full function further general generate get give given go good group guide had handle has
have he help helpful her here high him his history hold how however human if ignore image implement
important in include including information input inside instead instruction instructions into introduce is
issue it item its itself just keep kind know known language large last later lead learn least leave less
let level like limit line lines list local long look made main make manage many match matter may me mean
means message method might minimal model modify more most move much must my name need needed never new next
no none not note nothing now number object of off offer often on once one only open operation option or
order other our out output over own page part particular pass path people perform perhaps permission place
plan please point position possible prefer present previous problem process produce program project prompt
proper provide purpose question quickly quote rather read ready reason receive recent refer relevant remain
remember remove repeat replace reply report repository request require required respond response rest
result return review right role root rule run safe said same save say search second section secure see
seem send sentence separate sequence service session set several shall share she short should show side
similar simple since single size so software some something source space specific standard start state
statement step still stop string structure style subject such suggest summary support sure system take
task team tell term test text than that the their them then there these they thing think this those though
through time to together tone tool tools topic toward true try turn two type under understand unless until
up update use used useful user users uses using usually valid value variable various verify version very
via view want was way we well were what when where whether which while who whole why will wish with within
without word work workspace would write writing written wrong yes yet you your yourself""".split()

CAPITALS = dict(pair.split("=") for pair in """France=Paris Italy=Rome Germany=Berlin Spain=Madrid
England=London Austria=Vienna Norway=Oslo Ireland=Dublin Portugal=Lisbon Greece=Athens Poland=Warsaw
Hungary=Budapest Japan=Tokyo China=Beijing India=Delhi Egypt=Cairo Kenya=Nairobi Peru=Lima Cuba=Havana
Sweden=Stockholm Denmark=Copenhagen Finland=Helsinki Switzerland=Bern Belgium=Brussels Canada=Ottawa
Russia=Moscow Turkey=Ankara Iceland=Reykjavik""".split())
OPPOSITES = dict(pair.split("=") for pair in """hot=cold big=small fast=slow old=young up=down left=right day=night
open=closed early=late full=empty hard=soft happy=sad high=low light=dark loud=quiet rich=poor strong=weak
wet=dry good=bad long=short near=far true=false first=last yes=no on=off in=out north=south east=west
black=white clean=dirty easy=difficult""".split())
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

_ONSETS = "b d f g h k l m n p r s t v z br dr gr kl pl st tr sh th".split()
_VOWELS = "a e i o u ai ee ou".split()
_CODAS = ["", "", "n", "r", "l", "s", "k", "x", "m"]


def invented(random, capital=False):
    """Returns a word that no list has, so that it can only be copied."""
    word = "".join(random.choice(_ONSETS) + random.choice(_VOWELS) for _ in range(random.randint(1, 2)))
    word += random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS)
    return word.capitalize() if capital else word
