/** Requests to the server that this page came from, with the key that the user gave, kept for this tab only. */
const KEY = "foretoken-api-key";

export async function call(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key !== null) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store" });
  if (response.status !== 401) return response;
  await askForKey();
  return call(path, body, signal);
}

let asking;

function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = document.querySelector("#key-dialog");
    const input = document.querySelector("#key");
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(KEY, input.value.trim());
        input.value = "";
        asking = undefined;
        resolve();
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}
