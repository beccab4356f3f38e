"""A small game that holds what the real ones do not: forall, conditional effects, dark rooms."""

DOMAIN = """
(define (domain toy)
 (:types agent place thing)
 (:predicates (at ?a - agent ?p - place) (in ?t - thing ?p - place) (holds ?a - agent ?t - thing)
              (locked ?p - place) (lit ?p - place) (wanted ?t - thing) (rested ?a - agent))
 (:action walk :parameters (?a - agent ?from - place ?to - place)
  :precondition (and (at ?a ?from) (or (not (locked ?to)) (exists (?a - agent ?k - thing) (holds ?a ?k))))
  :effect (and (not (at ?a ?from)) (at ?a ?to) (increase (total-cost) 1)))
 (:action take :parameters (?a - agent ?p - place ?t - thing)
  :precondition (and (at ?a ?p) (in ?t ?p) (not (exists (?x - thing) (holds ?a ?x))))
  :effect (and (holds ?a ?t) (not (in ?t ?p))))
 (:action drop :parameters (?a - agent ?p - place ?t - thing)
  :precondition (and (at ?a ?p) (holds ?a ?t))
  :effect (and (in ?t ?p) (not (holds ?a ?t))))
 (:action switch :parameters (?a - agent ?p - place)
  :precondition (at ?a ?p)
  :effect (and (when (lit ?p) (not (lit ?p))) (when (not (lit ?p)) (lit ?p))))
 (:action wait :parameters (?a - agent) :precondition () :effect (rested ?a))
)"""
PROBLEM = """
(define (problem p) (:domain toy)
 (:objects me - agent hall_bar_1 hall_bar_2 cell_bar_1 - place key_bar_1 gem_bar_1 - thing) ; a comment
 (:init (= (total-cost) 0) (at me hall_bar_1) (locked cell_bar_1) (in key_bar_1 hall_bar_1)
        (in gem_bar_1 cell_bar_1) (wanted gem_bar_1) (lit hall_bar_1) (lit hall_bar_2))
 (:goal (and (forall (?t - thing)
                (imply (wanted ?t) (exists (?p - place) (and (in ?t ?p) (not (locked ?p))))))
             (not (lit hall_bar_1)))))"""
GRAMMAR = '''
# a comment
grammar :: """
 {"intro": [{"rhs": "#places#\\n\\nYour task is to: bring the gem."}],
  "places": [{"rhs": "You see [{#one(p)# | lit(p:place)}]."}],
  "one(p)": [{"rhs": "{p.indefinite} {p.name or p.id}"}],
  "went": [{"condition": "lit(to:place)",
            "rhs": "{'The ' + to.name} is lit: [{t.name | in(t:thing, to:place)}]."},
           {"rhs": "It is dark."}],
  "missing": [{"rhs": "Gone: [{t.name | not_in(t:thing, p:place)}]."}],
  "list_empty": [{"rhs": "nothing"}], "list_separator": [{"rhs": ", "}],
  "list_last_separator": [{"rhs": ", and "}]}
""";
action walk { template :: "walk to {to}"; feedback :: "#went#"; }
action take { template :: "take {t}"; feedback :: "#missing#"; }
action drop { template :: "drop {t}"; feedback :: "#missing#"; }
action switch { template :: "switch"; feedback :: "Click."; }
action wait { template :: "wait"; feedback :: "
  Time passes."; }
'''
