/**
 * The built-in prompts: small coding tasks in several phrasings, so that a few hundred are distinct from their first
 * words on and a prefix cache finds nothing to reuse but the chat template.
 */

/** [function name, what it does] */
const tasks: readonly (readonly [string, string])[] = [
  ["add", "add two numbers"],
  ["subtract", "subtract one number from another"],
  ["multiply", "multiply two numbers"],
  ["is_prime", "check whether a number is prime"],
  ["gcd", "compute the greatest common divisor of two numbers"],
  ["factorial", "compute the factorial of a number"],
  ["fibonacci", "return the n-th Fibonacci number"],
  ["reverse_string", "reverse a string"],
  ["is_palindrome", "check whether a string is a palindrome"],
  ["count_vowels", "count the vowels in a string"],
  ["count_words", "count how often each word occurs in a text"],
  ["sum_list", "sum a list of numbers"],
  ["average", "compute the average of a list of numbers"],
  ["median", "find the median of a list of numbers"],
  ["unique", "remove duplicates from a list and keep the order"],
  ["flatten", "flatten a list of lists"],
  ["binary_search", "find an item in a sorted list with binary search"],
  ["bubble_sort", "sort a list with bubble sort"],
  ["merge_sort", "sort a list with merge sort"],
  ["quick_sort", "sort a list with quick sort"],
  ["merge_dicts", "merge two dictionaries"],
  ["invert_dict", "swap the keys and values of a dictionary"],
  ["read_lines", "read the lines of a file without their line ends"],
  ["count_lines", "count the lines of a file"],
  ["parse_csv", "split a line of comma separated values into fields"],
  ["celsius_to_fahrenheit", "convert Celsius to Fahrenheit"],
  ["to_binary", "write a number in binary digits"],
  ["roman", "write a number in Roman numerals"],
  ["transpose", "transpose a matrix given as a list of rows"],
  ["dot", "compute the dot product of two vectors"],
  ["chunk", "split a list into chunks of a given size"],
  ["rotate", "rotate a list by a number of places"],
  ["second_largest", "find the second largest number in a list"],
  ["common_prefix", "find the longest common prefix of some strings"],
  ["is_anagram", "check whether two strings are anagrams"],
  ["caesar", "encrypt a text with a Caesar cipher"],
  ["depth", "compute the depth of a binary tree"],
  ["bfs", "visit the nodes of a graph in breadth-first order"],
  ["memoize", "remember the results of a function it is given"],
  ["retry", "call a function again when it raises an error"],
];

const phrasings: readonly ((name: string, task: string) => string)[] = [
  (_, task) => `Write a Python function to ${task}.`,
  (name, task) => `Implement ${name} in Python: it should ${task}.`,
  (name, task) => `Create a Python function called ${name} that can ${task}.`,
  (_, task) => `How do I ${task} in Python?`,
  (name, task) => `Please write the Python function \`${name}\` to ${task}, with a docstring.`,
  (_, task) => `Give me Python code to ${task}, and one example of its use.`,
  (name, task) => `Define ${name}(...) in Python. It must ${task} and raise ValueError on bad input.`,
  (_, task) => `Show how to ${task} in Python without importing anything.`,
];

export const nCodePrompts: number = tasks.length * phrasings.length;

/** Prompt i of the built-in set; past its end the text says which variant it is, so prompts stay distinct. */
export function codePrompt(i: number): { readonly id: string; readonly text: string } {
  const at = i % nCodePrompts;
  const variant = Math.floor(i / nCodePrompts);
  const [name, task] = tasks[at % tasks.length] as (typeof tasks)[number];
  const phrase = phrasings[Math.floor(at / tasks.length)] as (typeof phrasings)[number];
  const text = phrase(name, task);
  return { id: `code-${i}`, text: variant === 0 ? text : `Variant ${variant + 1}. ${text}` };
}

/** A text for shared prefixes; words are counted, not tokens. */
const preamble =
  "You are a careful programmer who answers with short, correct Python code and says in one line what each function does. ".split(" ");

export function preambleWords(nWords: number): string {
  return Array.from({ length: nWords }, (_, i) => preamble[i % preamble.length]).join(" ");
}
