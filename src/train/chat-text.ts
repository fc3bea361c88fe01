/** The chat template of a model, cut to what capture needs: a rendered prompt, and the text around a user's message. */
import { Template } from "@huggingface/jinja";
import { UserError, errorMessage } from "../util/errors.ts";

export interface ChatText {
  render(messages: readonly { readonly role: string; readonly content: string }[]): string;
  /** What stands before and after the first user message, up to where the assistant's answer begins. */
  readonly userTurn: { readonly before: string; readonly after: string };
}

const placeholder = "\u0001user\u0001";

/** @throws {UserError} when the template is missing or does not render. */
export function createChatText(source: string | undefined, tokens: { readonly bos: string; readonly eos: string }): ChatText {
  if (source === undefined) throw new UserError("the model has no chat template, and the prompts hold messages; give text prompts instead");
  const template = new Template(source);
  const render: ChatText["render"] = (messages) => {
    try {
      return template.render({ messages: messages.map((m) => ({ ...m })), add_generation_prompt: true, bos_token: tokens.bos, eos_token: tokens.eos });
    } catch (error) {
      throw new UserError(`the model's chat template does not render: ${errorMessage(error)}`);
    }
  };
  const [before, after] = render([{ role: "user", content: placeholder }]).split(placeholder);
  if (before === undefined || after === undefined) throw new UserError("the model's chat template changes a user's message; a user-turn line cannot be used with it");
  return { render, userTurn: { before, after } };
}
