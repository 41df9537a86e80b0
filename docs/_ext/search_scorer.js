// Sphinx's scorer of search results, with its weights. Pages with the word in their title come first; then names of
// the reference, those with fewer packages around them before others.
var Scorer = {
  score: ([, title, , , score, , kind]) => {
    if (kind === "object") return score - title.split(".").length;
    const word = (new URLSearchParams(location.search).get("q") ?? "").trim().toLowerCase();
    return title.split(" > ")[0].toLowerCase().includes(word) ? score + 10 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 0,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
