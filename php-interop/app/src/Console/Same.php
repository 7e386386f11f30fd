<?php

namespace App\Console;

use App\Document;
use Closure;
use Illuminate\Console\Command;
use ReflectionFunction;
use ReflectionReference;

/** Whether PHP makes the same objects of two serialized texts: equal values, and the same identities and references. */
class Same extends Command
{
    protected $signature = 'interop:same {left} {right}';

    protected $description = 'Unserialize two texts (base64) and compare the graphs; {"same","left","right"}';

    private array $objects;

    private array $references;

    public function handle(): int
    {
        [$left, $right] = array_map(function (string $text): string {
            [$this->objects, $this->references] = [[], []];
            $value = unserialize(base64_decode($text, true));

            return $this->shape($value);
        }, [$this->argument('left'), $this->argument('right')]);
        $this->output->writeln(Document::json([
            'same' => $left === $right, 'left' => $left, 'right' => $right,
        ]), $this->output::OUTPUT_RAW);

        return 0;
    }

    private function shape(mixed $value): string
    {
        if (is_array($value)) {
            return '['.$this->items($value).']';
        }
        if (! is_object($value)) {
            return var_export(is_string($value) ? bin2hex($value) : $value, true);
        }
        $known = array_search($value, $this->objects, true);
        if ($known !== false) {
            return "object {$known}";
        }
        $this->objects[] = $value;
        if ($value instanceof Closure) {
            $function = new ReflectionFunction($value);

            return 'closure {'.$function->getNumberOfParameters().$this->items($function->getStaticVariables()).'}';
        }
        if ($value instanceof \UnitEnum) {
            return $value::class.'::'.$value->name;
        }
        $properties = (array) $value;
        // Each serialization makes it again, and the signature over it.
        if (str_starts_with($value::class, 'Laravel\SerializableClosure\Serializers')) {
            unset($properties["\0*\0reference"], $properties["\0*\0code"]);
        }
        if ($value instanceof \DateTimeInterface || $value instanceof \DateInterval) {
            $properties = ['serialized' => serialize($value)];
        }
        ksort($properties, SORT_STRING);

        return $value::class.' {'.$this->items($properties).'}';
    }

    private function items(array $items): string
    {
        $text = '';
        foreach (array_keys($items) as $key) {
            $text .= bin2hex($key).'=';
            $reference = ReflectionReference::fromArrayElement($items, $key)?->getId();
            if ($reference !== null) {
                $known = array_search($reference, $this->references, true);
                if ($known !== false) {
                    $text .= "reference {$known},";
                    continue;
                }
                $this->references[] = $reference;
                $text .= '&';
            }
            $text .= $this->shape($items[$key]).',';
        }

        return $text;
    }
}
