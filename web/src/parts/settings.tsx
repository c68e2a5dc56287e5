// How the playground samples. An empty field leaves the choice to the server.
import { useState } from "preact/hooks";
import type { Settings } from "../generate";
import { Panel } from "./panel";

interface Props {
  settings: Settings;
  onChange: (part: Partial<Settings>) => void;
}

export function SettingsForm({ settings, onChange }: Props) {
  return (
    <Panel title="Sampling" class="settings">
      <label>
        System message
        <textarea
          rows={3}
          value={settings.system}
          onInput={(e) => onChange({ system: e.currentTarget.value })}
        />
      </label>
      <NumberField
        label="Temperature"
        value={settings.temperature}
        max={2}
        step={0.1}
        onChange={(temperature) => onChange({ temperature })}
      />
      <NumberField
        label="Top p"
        value={settings.top_p}
        max={1}
        step={0.05}
        onChange={(top_p) => onChange({ top_p })}
      />
      <NumberField
        label="Max tokens"
        value={settings.max_tokens}
        min={1}
        step={1}
        onChange={(max_tokens) => onChange({ max_tokens: max_tokens ?? 256 })}
      />
      <NumberField
        label="Seed"
        value={settings.seed}
        step={1}
        onChange={(seed) => onChange({ seed })}
      />
    </Panel>
  );
}

interface NumberProps {
  label: string;
  value: number | null;
  min?: number;
  max?: number;
  step: number;
  onChange: (value: number | null) => void;
}

// What is typed stays as it is, whatever is drawn meanwhile; what is valid counts at once.
function NumberField({ label, value, min = 0, max, step, onChange }: NumberProps) {
  const [draft, setDraft] = useState(value?.toString() ?? "");
  return (
    <label>
      {label}
      <input
        type="number"
        inputMode="decimal"
        min={min}
        {...(max !== undefined && { max })}
        step={step}
        value={draft}
        placeholder="the model's"
        onInput={(e) => {
          const { value: text, validity, valueAsNumber } = e.currentTarget;
          setDraft(text);
          if (text === "" && !validity.badInput) onChange(null);
          else if (validity.valid) onChange(valueAsNumber);
        }}
        onChange={(e) => e.currentTarget.reportValidity()}
      />
    </label>
  );
}
